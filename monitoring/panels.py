"""The building blocks of a dashboard, over Grafana's own builders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

#: Labels that the variables of a board select: of an application, of a fleet, of replicas.
APPLICATION = 'application="$application"'
FLEET = f'{APPLICATION}, deployment=~"$deployment"'
REPLICAS = f'{FLEET}, replica=~"$replica"'

HEIGHT = 8
STAT_HEIGHT = 4
GREEN, YELLOW, ORANGE, RED, BLUE = "green", "yellow", "orange", "red", "blue"
_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
#: A gauge that every application, deployment and replica has from its first second on.
_PRESENT = "ray_sojourn_sla_percentile_ratio"
_TAG = "sojourn"

Panel = timeseries.Panel | stat.Panel | statetimeline.Panel | heatmap.Panel
Steps = Sequence[tuple[float | None, str]]
"""Colors of thresholds, each from a value on; the first has none."""


@dataclass(frozen=True)
class Query:
    """A query of a panel.

    Attributes
    ----------
    expr : str
        PromQL.
    legend : str
        Legend, with labels in double braces.
    dashed : bool
        Whether to draw it dashed: limits and predictions are, measurements are not.
    unit : str, optional
        Its own unit, on an axis at the right.
    """

    expr: str
    legend: str
    dashed: bool = False
    unit: str | None = None


@dataclass(frozen=True)
class About:
    """What a panel shows.

    Attributes
    ----------
    title, text : str
    page : str
        The page of docs that explains it, ``docs/PAGE.md`` or ``docs/PAGE.md#section``.
    unit : str
        Grafana's name of the unit.
    """

    title: str
    text: str
    page: str
    unit: str


def lines(
    about: About,
    *queries: Query,
    span: int = 12,
    stacked: bool = False,
    least: float | None = 0,
    steps: Steps = (),
) -> timeseries.Panel:
    """Return a panel of lines over time.

    Parameters
    ----------
    about : About
    *queries : Query
    span : int
        Width, of 24.
    stacked : bool
        Whether to stack them.
    least : float, optional
        Where the axis begins; None: at the data.
    steps : sequence of (float, str)
        Thresholds, drawn as dashed lines.
    """
    panel = timeseries.Panel().line_width(1).fill_opacity(25 if stacked else 5)
    panel.legend(
        common.VizLegendOptions()
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    panel.tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    if least is not None:
        panel.min(least)
    if steps:
        panel.thresholds(_thresholds(steps)).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED)
        )
    for place, query in enumerate(queries):
        own: dict[str, object] = {}
        if query.dashed:
            own["custom.lineStyle"] = {"fill": "dash", "dash": [8, 6]}
        if query.unit is not None:
            own |= {"unit": query.unit, "custom.axisPlacement": "right"}
        if own:
            properties = [models.DynamicConfigValue(name, value) for name, value in own.items()]
            panel.override_by_query(_ref(place), properties)
    _describe(panel, about, queries, span, HEIGHT)
    return panel


def number(about: About, *queries: Query, span: int = 4, steps: Steps = ()) -> stat.Panel:
    """Return a panel of present values; parameters as of `lines`."""
    panel = stat.Panel().graph_mode(common_models.BigValueGraphMode.NONE)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    mode = common_models.BigValueColorMode
    panel.color_mode(mode.BACKGROUND if steps else mode.NONE)
    if steps:
        panel.thresholds(_thresholds(steps))
    _describe(panel, about, queries, span, STAT_HEIGHT, instant=True)
    return panel


def states(
    about: About, *queries: Query, names: Mapping[int, tuple[str, str]], span: int = 12
) -> statetimeline.Panel:
    """Return a panel of states over time.

    Parameters
    ----------
    about, *queries, span
        As of `lines`.
    names : mapping of int to (str, str)
        The name and the color of each value.
    """
    results = {
        str(value): models.ValueMappingResult(text=text, color=color)
        for value, (text, color) in names.items()
    }
    panel = statetimeline.Panel().mappings([models.ValueMap(options=results)])
    panel.show_value(common_models.VisibilityMode.AUTO).merge_values(True).row_height(0.8)
    _describe(panel, about, queries, span, HEIGHT)
    return panel


def buckets(about: About, query: Query, span: int = 12) -> heatmap.Panel:
    """Return a panel of a histogram over time; parameters as of `lines`."""
    panel = heatmap.Panel().calculate(False)
    panel.color(
        heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(32)
    )
    panel.y_axis(heatmap.YAxisConfig().unit(about.unit))
    _describe(panel, about, [query], span, HEIGHT)
    panel.targets([_target(0, query).range().format(PromQueryFormat.HEATMAP)])
    return panel


def board(
    uid: str,
    title: str,
    text: str,
    rows: Mapping[str, Sequence[Panel]],
    labels: Sequence[str],
    present: str = _PRESENT,
) -> dict[str, Any]:
    """Return a dashboard as Grafana reads it.

    Parameters
    ----------
    uid, title, text : str
    rows : mapping of str to sequence of Panel
        Its panels, by the title of their row.
    labels : sequence of str
        The labels that its variables select, the first one value, the others any number.
    present : str
        A metric with these labels that is there from the first second on.
    """
    builder = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(text)
        .tags([_TAG])
        .time("now-1h", "now")
        .refresh("10s")
        .timezone("browser")
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
    )
    builder.link(
        dashboard.DashboardLink("Sojourn")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([_TAG])
        .include_vars(True)
        .keep_time(True)
    )
    builder.with_variable(
        dashboard.DatasourceVariable("datasource").label("data source").type("prometheus")
    )
    for depth, label in enumerate(labels):
        builder.with_variable(_variable(label, labels[:depth], present))
    for title, panels in rows.items():
        builder.with_row(dashboard.Row(title))
        for panel in panels:
            builder.with_panel(panel)
    built = builder.build()
    for place, placed in enumerate(built.panels or (), start=1):
        placed.id_val = place
    content: dict[str, Any] = built.to_json()
    return content


def _variable(label: str, above: Sequence[str], present: str) -> dashboard.QueryVariable:
    chosen = ", ".join(f'{other}=~"${other}"' for other in above)
    variable = (
        dashboard.QueryVariable(label)
        .label(label)
        .datasource(_SOURCE)
        .query(f"label_values({present}{{{chosen}}}, {label})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    if above:
        everything = models.VariableOption(selected=True, text="All", value="$__all")
        variable.multi(True).include_all(True).all_value(".*").current(everything)
    return variable


def _describe(
    panel: Panel,
    about: About,
    queries: Sequence[Query],
    span: int,
    height: int,
    *,
    instant: bool = False,
) -> None:
    panel.title(about.title).description(f"{about.text} See {about.page}.").unit(about.unit)
    panel.datasource(_SOURCE).span(span).height(height)
    for number_, query in enumerate(queries):
        target = _target(number_, query)
        panel.with_target(target.instant() if instant else target.range())


def _target(place: int, query: Query) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .datasource(_SOURCE)
        .expr(query.expr)
        .legend_format(query.legend)
        .ref_id(_ref(place))
    )


def _ref(place: int) -> str:
    return chr(ord("A") + place)


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    return dashboard.ThresholdsConfig().steps(
        [models.Threshold(value, color) for value, color in steps]
    )
