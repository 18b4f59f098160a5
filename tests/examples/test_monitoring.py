"""The dashboard, the alert rules and the compose file: every expression parses and asks for what a server has."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from limelight.engine import EngineState
from limelight.errors import InvalidRequest, Overloaded, StepFailure
from limelight.generation import SamplingParams
from limelight.http import create_app
from limelight.telemetry.prometheus.collector import ROWS
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, chat_body, client_of

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).resolve().parent.parent.parent / "examples" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana" / "dashboards" / "limelight.json").read_text())
OF_THE_SCRAPE = {"job", "instance"}
"""Labels that Prometheus adds, and `up` is its own."""


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def rules():
    groups = yaml.safe_load((FOLDER / "prometheus" / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions():
    """Those of Grafana with the variables as Grafana fills them in."""
    for panel in panels():
        for target in panel["targets"]:
            filled = re.sub(r"\$(model|instance)", ".*", target["expr"].replace("$__rate_interval", "1m"))
            assert "$" not in filled
            yield panel["title"], filled
    for rule in rules():
        yield rule["alert"], rule["expr"]


def below(node) -> Iterator[object]:
    """A node of a PromQL expression and all below it."""
    yield node
    match node:
        case promql.AggregateExpr() | promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield from below(node.expr)
        case promql.BinaryExpr():
            yield from below(node.lhs)
            yield from below(node.rhs)
        case promql.Call():
            for argument in node.args:
                yield from below(argument)
        case promql.MatrixSelector():
            yield node.vector_selector


async def scrape_of_a_busy_day():
    """Samples of a server that has completed, failed and refused requests, fails in the end, and guesses."""

    def before_step(step):
        if fails:
            raise RuntimeError("broken")

    fails = False
    engine = scripted_engine("abab" * 20, before_step=before_step, max_num_requests=1, num_speculative_tokens=2)
    async with engine, client_of(create_app(engine)) as client:
        assert (await client.post(CHAT, json=chat_body(max_tokens=20))).status_code == 200
        assert (await client.post(CHAT, json=chat_body(model="unknown"))).status_code == 404
        with pytest.raises(InvalidRequest):
            await engine.generate([-1])
        with anyio.fail_after(60):
            while engine.telemetry.live:
                await anyio.sleep(0.01)
        async with engine.stream("hello", SamplingParams(max_tokens=1000)):
            with pytest.raises(Overloaded):
                await engine.generate("hello")
            fails = True
        with anyio.fail_after(60):
            while engine.telemetry.live:
                await anyio.sleep(0.01)
        with pytest.raises(StepFailure):
            await engine.generate("hello")
        with anyio.fail_after(60):
            while engine.telemetry.live:
                await anyio.sleep(0.01)
        text = (await client.get("/metrics", headers={"accept": "text/plain"})).text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


async def test_every_expression_finds_its_metrics_and_labels_in_a_live_scrape():
    samples = await scrape_of_a_busy_day()
    labels: dict[str, set[str]] = {"up": set()}
    values: dict[tuple[str, str], set[str]] = {}
    for sample in samples:
        labels.setdefault(sample.name, set()).update(sample.labels)
        for label, value in sample.labels.items():
            values.setdefault((sample.name, label), set()).add(value)
    num_selectors = 0
    for where, text in expressions():
        tree = promql.parse(text)
        for node in below(tree):
            if isinstance(node, promql.VectorSelector):
                num_selectors += 1
                assert node.name in labels, (where, node.name)
                for matcher in node.matchers.matchers:
                    assert matcher.name in labels[node.name] | OF_THE_SCRAPE, (where, text)
                    if matcher.name not in OF_THE_SCRAPE:
                        found = values[node.name, matcher.name]
                        wanted = matcher.value.split("|") if matcher.value != ".*" else []
                        assert set(wanted) <= found, (where, text)
            elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
                names = [one.name for one in below(node.expr) if isinstance(one, promql.VectorSelector)]
                for label in node.modifier.labels:
                    assert all(label in labels[name] | OF_THE_SCRAPE for name in names), (where, text)
    assert num_selectors > 80


def test_the_dashboard_shows_nearly_everything_that_there_is():
    text = " ".join(expression for _, expression in expressions())
    suffix = {"histogram": "_(bucket|sum|count)"}
    left_out = {
        row.exposed_name for row in ROWS if not re.search(rf"\b{row.exposed_name}{suffix.get(row.kind, '')}\b", text)
    }
    assert left_out == {
        *("limelight_engine_info", "limelight_adapter_bytes", "limelight_adapter_live_requests"),
        *("limelight_http_request_seconds", "limelight_http_response_bytes_total", "limelight_request_choices"),
        *("limelight_request_max_tokens", "limelight_request_preemptions", "limelight_request_reasoning_tokens"),
        *("limelight_principal_requests_total", "limelight_reasoning_tokens_total"),
    }


def test_panels_are_laid_out_without_overlaps_and_explain_themselves():
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(target["legendFormat"] for panel in panels() for target in panel["targets"])
    assert [panel["title"] for panel in panels() if panel["targets"][0]["exemplar"]] == [
        *("Time to first token", "Whole request", "Time per output token", "Waiting in the queue"),
    ]


def test_rules_say_what_to_do_and_name_states_that_there_are():
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "description"}
    states = re.findall(r'state="(\w+)"', " ".join(rule["expr"] for rule in rules()))
    assert set(states) <= {state.value for state in EngineState}


def test_what_the_compose_file_mounts_and_names_is_there():
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    services = compose["services"]
    for service in services.values():
        assert re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+", service["image"])
        for mount in service["volumes"]:
            source, _, mode = mount.partition(":")[0], *mount.split(":")[1:]
            assert (FOLDER / source).exists()
            assert mode == "ro"
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
    collector = yaml.safe_load((FOLDER / "collector.yaml").read_text())
    used = {name for pipeline in collector["service"]["pipelines"].values() for name in pipeline["exporters"]}
    assert used == collector["exporters"].keys()
    addresses = [exporter["endpoint"].removeprefix("http://") for exporter in collector["exporters"].values()]
    sources = yaml.safe_load((FOLDER / "grafana/provisioning/datasources/datasources.yaml").read_text())["datasources"]
    addresses += [source["url"].removeprefix("http://") for source in sources]
    assert {address.partition(":")[0] for address in addresses} <= services.keys()
    (exemplars,) = sources[0]["jsonData"]["exemplarTraceIdDestinations"]
    assert exemplars == {"name": "trace_id", "datasourceUid": "tempo"}
    prometheus = yaml.safe_load((FOLDER / "prometheus/prometheus.yaml").read_text())
    assert all((FOLDER / "prometheus" / name).exists() for name in prometheus["rule_files"])
