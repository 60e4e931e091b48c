/* A libcuda whose device memory is host memory: real across processes, without a GPU.

   It implements the functions that the device tier calls. Where cuda.h is found, the compiler
   checks that they are those of CUDA; elsewhere it uses the declarations below.

   FAKE_CUDA is a list of words: "no-descriptors" has no descriptors of virtual memory, "no-read-only"
   maps no memory for reading only, "no-device" has no GPU. FAKE_CUDA_BYTES is the GPU's memory. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if __has_include(<cuda.h>)
#include <cuda.h>
#else
#define CUDAAPI
typedef int CUresult, CUdevice, CUdevice_attribute, CUmemAllocationHandleType;
typedef int CUmemAllocationGranularity_flags, CUmemAccess_flags;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct { char bytes[16]; } CUuuid;
typedef struct { int type, id; } CUmemLocation;
typedef struct {
  int type, requestedHandleTypes;
  CUmemLocation location;
  void *win32HandleMetaData;
  struct {
    unsigned char compressionType, gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
} CUmemAllocationProp;
typedef struct { CUmemLocation location; CUmemAccess_flags flags; } CUmemAccessDesc;
#define CUDA_SUCCESS 0
#define CUDA_ERROR_INVALID_VALUE 1
#define CUDA_ERROR_OUT_OF_MEMORY 2
#define CUDA_ERROR_NO_DEVICE 100
#define CUDA_ERROR_INVALID_CONTEXT 201
#define CUDA_ERROR_INVALID_HANDLE 400
#define CUDA_ERROR_NOT_SUPPORTED 801
#define CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED 102
#define CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED 103
#define CU_MEM_ALLOCATION_TYPE_PINNED 1
#define CU_MEM_LOCATION_TYPE_DEVICE 1
#define CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR 1
#define CU_MEM_ALLOC_GRANULARITY_MINIMUM 0
#define CU_MEM_ACCESS_FLAGS_PROT_READ 1
#define CU_MEM_ACCESS_FLAGS_PROT_READWRITE 3
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#define cuMemcpyHtoD cuMemcpyHtoD_v2
#define cuMemcpyDtoH cuMemcpyDtoH_v2
#endif

#define PAGE (2u << 20)
#define CONTEXT ((CUcontext)0x77)
#define NEED(condition, error) do { if (!(condition)) return error; } while (0)
#define VALUE(condition) NEED(condition, CUDA_ERROR_INVALID_VALUE)
#define CURRENT NEED(depth > 0, CUDA_ERROR_INVALID_CONTEXT)

static _Thread_local int depth;
static size_t used_bytes;

/* A handle is a descriptor plus this, so that no plain descriptor is taken for one. */
static const unsigned long long MARK = 1ull << 40;

static int has(const char *word) {
  const char *words = getenv("FAKE_CUDA");
  return words && strstr(words, word);
}

static int take(size_t size) {
  const char *limit = getenv("FAKE_CUDA_BYTES");
  size_t all = limit ? strtoull(limit, NULL, 10) : 1ull << 30;
  if (used_bytes + size > all) return 0;
  used_bytes += size;
  return 1;
}

static int valid_location(const CUmemLocation *location) {
  return location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == 0;
}

static int valid_properties(const CUmemAllocationProp *p) {
  static const unsigned char zeros[sizeof p->allocFlags];
  return p->type == CU_MEM_ALLOCATION_TYPE_PINNED && valid_location(&p->location) &&
         p->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
         !p->win32HandleMetaData && !memcmp(&p->allocFlags, zeros, sizeof zeros);
}

static size_t size_of(int descriptor) {
  struct stat status;
  return fstat(descriptor, &status) ? 0 : (size_t)status.st_size;
}

CUresult CUDAAPI cuInit(unsigned int flags) {
  VALUE(flags == 0);
  return has("no-device") ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
          : error == CUDA_ERROR_NO_DEVICE   ? "no CUDA-capable device is detected"
          : error == CUDA_ERROR_INVALID_HANDLE ? "invalid resource handle" : "failed";
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) {
  NEED(ordinal == 0, 101);
  *device = 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  VALUE(device == 0);
  memcpy(uuid->bytes, "sojourn-fake-gpu", 16);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  VALUE(device == 0);
  if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) *value = 1;
  else if (attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
    *value = !has("no-descriptors");
  else return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  VALUE(device == 0);
  *context = CONTEXT;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
  NEED(context == CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
  depth++;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext *context) {
  CURRENT;
  depth--;
  *context = CONTEXT;
  return CUDA_SUCCESS;
}

#undef cuCtxSynchronize
CUresult CUDAAPI cuCtxSynchronize(void) {
  CURRENT;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *properties,
                                               CUmemAllocationGranularity_flags option) {
  VALUE(valid_properties(properties) && option == CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  *size = PAGE;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                             const CUmemAllocationProp *properties, unsigned long long flags) {
  VALUE(valid_properties(properties) && size && size % PAGE == 0 && flags == 0);
  NEED(take(size), CUDA_ERROR_OUT_OF_MEMORY);
  int descriptor = memfd_create("fake-cuda", MFD_CLOEXEC);
  NEED(descriptor >= 0 && !ftruncate(descriptor, (off_t)size), CUDA_ERROR_OUT_OF_MEMORY);
  *handle = MARK + (unsigned)descriptor;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  VALUE(handle >= MARK);
  size_t size = size_of((int)(handle - MARK));
  used_bytes -= size < used_bytes ? size : used_bytes;
  VALUE(!close((int)(handle - MARK)));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type,
                                              unsigned long long flags) {
  VALUE(handle >= MARK && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && flags == 0);
  int copied = fcntl((int)(handle - MARK), F_DUPFD_CLOEXEC, 0);
  VALUE(copied >= 0);
  *(int *)shareable = copied;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                                CUmemAllocationHandleType type) {
  VALUE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  int copied = fcntl((int)(uintptr_t)shareable, F_DUPFD_CLOEXEC, 0);
  NEED(copied >= 0, CUDA_ERROR_INVALID_HANDLE);
  *handle = MARK + (unsigned)copied;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment,
                                     CUdeviceptr address, unsigned long long flags) {
  VALUE(size % PAGE == 0 && alignment == 0 && address == 0 && flags == 0);
  void *reserved = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  NEED(reserved != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
  *pointer = (CUdeviceptr)(uintptr_t)reserved;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr pointer, size_t size) {
  VALUE(!munmap((void *)(uintptr_t)pointer, size));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) {
  VALUE(handle >= MARK && offset == 0 && flags == 0 && size == size_of((int)(handle - MARK)));
  void *mapped = mmap((void *)(uintptr_t)pointer, size, PROT_NONE, MAP_SHARED | MAP_FIXED,
                      (int)(handle - MARK), 0);
  VALUE(mapped != MAP_FAILED);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr pointer, size_t size) {
  void *back = mmap((void *)(uintptr_t)pointer, size, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  VALUE(back != MAP_FAILED);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access,
                                size_t count) {
  VALUE(count == 1 && valid_location(&access->location));
  int protection = PROT_READ;
  if (access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection |= PROT_WRITE;
  else if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_INVALID_VALUE;
  else if (has("no-read-only")) return CUDA_ERROR_NOT_SUPPORTED;
  VALUE(!mprotect((void *)(uintptr_t)pointer, size, protection));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostAlloc(void **pointer, size_t size, unsigned int flags) {
  CURRENT;
  VALUE(flags == 0);
  *pointer = malloc(size);
  return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr target, const void *source, size_t size) {
  CURRENT;
  memcpy((void *)(uintptr_t)target, source, size);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemcpyDtoH(void *target, CUdeviceptr source, size_t size) {
  CURRENT;
  memcpy(target, (const void *)(uintptr_t)source, size);
  return CUDA_SUCCESS;
}
