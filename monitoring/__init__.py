"""What an operator loads beside Sojourn: Prometheus's rules, and dashboards for Grafana.

`panels`             the building blocks of a board: panels with queries, units, pages of docs
`sla_board`          what an owner looks at: the SLA, its budget, and the model beside the world
`replica_board`      one replica: when its batches start, how long they take, what limits it
`autoscaler_board`   demand and replicas, the model's error, start times, the model store
`render`             writes the boards as JSON
"""
