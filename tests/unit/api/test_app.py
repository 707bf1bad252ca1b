"""Every documented path answers in its documented shape; pages, tags and thinning work; everything else is refused."""

import json
from typing import Any

import pytest

from dilocoxd.answers.history import LossCurves
from dilocoxd.answers.site import Problem
from dilocoxd.answers.status import Losses
from dilocoxd.api.endpoints import ENDPOINTS, PAGE_MAX
from dilocoxd.api.queries import thinned
from dilocoxd.api.responses.encoding import encoded_in_steps
from dilocoxd.api.server import serve_api
from dilocoxd.config.api import ApiSection
from dilocoxd.errors import ConfigError
from tests.harness.shapes import assert_shape
from tests.harness.synthetic.fake_view import FakeControl, FakeView
from tests.unit.api.serving import Served, served

JSON_READS = [e for e in ENDPOINTS if e.method == "GET" and not isinstance(e.answer, str)]


@pytest.mark.parametrize("endpoint", JSON_READS, ids=lambda e: e.path)
async def test_documented_path_answers_in_its_shape(endpoint: Any) -> None:
    async with served() as api:
        api.view.is_ready = True
        answer = await api.ask(endpoint.path.replace("{round}", "1"))
        assert (answer.status, answer.kind) == (200, "application/json")
        assert_shape(endpoint.answer, json.dumps(answer.body))


async def test_metrics_are_text() -> None:
    async with served() as api:
        answer = await api.ask("/metrics")
        assert (answer.status, answer.kind) == (200, "text/plain")
        assert answer.body.startswith("dilocoxd_height 3\n")


async def test_the_api_counts_its_own_requests() -> None:
    async with served() as api:
        await api.ask("/v1/status")
        await api.ask("/v1/nothing")
        await api.ask("/v1/rounds?limit=0")
        shown = (await api.ask("/metrics")).body.splitlines()
        assert 'dilocoxd_api_requests_total{status="2xx"} 1.0' in shown
        assert 'dilocoxd_api_requests_total{status="4xx"} 2.0' in shown
        assert "dilocoxd_api_request_seconds_count 3.0" in shown
        assert 'dilocoxd_api_request_seconds_bucket{le="+Inf"} 3.0' in shown


async def test_not_ready_says_what_is_awaited() -> None:
    async with served() as api:
        answer = await api.ask("/readyz")
        assert (answer.status, answer.kind) == (503, "application/problem+json")
        assert answer.body["detail"] == "an answer of the first peer"
        api.view.is_ready = True
        assert (await api.ask("/readyz")).status == 200
        api.view.is_healthy = False
        assert (await api.ask("/healthz")).status == 503


async def pages(api: Served, path: str) -> list[int]:
    """Rounds of all pages, following the links."""
    found: list[int] = []
    while path:
        answer = await api.ask(path)
        found += [row["round"] for row in answer.body]
        link = answer.headers.get("Link", "")
        path = link[1 : link.index(">")] if link else ""
    return found


@pytest.mark.parametrize("path", ["/v1/rounds?limit=4", "/v1/rounds?from=0&limit=4", "/v1/log?limit=4"])
async def test_pages_link_to_each_other_and_cover_everything_once(path: str) -> None:
    async with served(num_rounds=11) as api:
        found = await pages(api, path)
        newest = 10 if "log" in path else 11
        expected = list(range(newest + 1))
        assert found == (expected if "from" in path else expected[::-1])


async def test_ten_thousand_rounds_in_pages() -> None:
    async with served(num_rounds=10_000) as api:
        assert await pages(api, f"/v1/rounds?limit={PAGE_MAX}") == list(range(10_000, -1, -1))


async def test_curves_are_thinned_on_request() -> None:
    async with served(num_rounds=1000) as api:
        whole = (await api.ask("/v1/losses")).body
        thin = (await api.ask("/v1/losses?points=50")).body
        assert len(whole["inner"]) == 20_000
        assert len(thin["inner"]) == len(thin["validation"]) == 50
        assert thin["inner"][-1][:2] == whole["inner"][-1][:2]
        mean = sum(point[2] for point in whole["inner"]) / len(whole["inner"])
        assert abs(sum(point[2] for point in thin["inner"]) / 50 - mean) < 1e-9


def test_thinning_keeps_short_curves() -> None:
    assert thinned([(1.0, 1, 2.0), (2.0, 2, 4.0)], 2) == [(1.0, 1, 2.0), (2.0, 2, 4.0)]
    assert thinned([(1.0, 1, 2.0), (2.0, 2, 4.0), (3.0, 3, 6.0)], 2) == [(1.0, 1, 2.0), (3.0, 3, 5.0)]
    assert thinned([(1.0, 1, 2.0), (2.0, 2, None), (3.0, 3, 6.0)], 2) == [(1.0, 1, 2.0), (3.0, 3, 6.0)]


async def test_poller_that_has_the_answer_gets_no_body() -> None:
    async with served() as api:
        first = await api.ask("/v1/status")
        again = await api.ask("/v1/status", headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status, again.body) == (304, "")
        assert api.view.num_status == 1, "many pollers cost one status"
        other = await api.ask("/v1/status", headers={"If-None-Match": '"something else"'})
        assert other.status == 200


async def test_age_alone_does_not_change_the_tag() -> None:
    async with served() as api:
        first = await api.ask("/v1/status?a=1")
        api.view.extra = {"uptime_s": 99.0}
        second = await api.ask("/v1/status?a=2")
        assert second.body["uptime_s"] == 99.0
        assert first.headers["ETag"] == second.headers["ETag"]
        api.view.extra = {"height": 99}
        assert (await api.ask("/v1/status?a=3")).headers["ETag"] != first.headers["ETag"]


async def test_a_loss_that_is_no_number_is_null() -> None:
    async with served() as api:
        losses = Losses(inner=float("nan"), validation=float("inf"), validation_round=1)
        api.view.extra = {"losses": losses}
        found = (await api.ask("/v1/status")).body["losses"]
        assert found == {"inner": None, "validation": None, "validation_round": 1, "validation_by_source": {}}


async def test_long_lists_are_encoded_like_short_ones() -> None:
    rows = [{"n": index, "x": index / 7} for index in range(1234)]
    assert json.loads(await encoded_in_steps(rows)) == rows
    points = [(index / 7, index, index / 3) for index in range(1234)]
    found = json.loads(await encoded_in_steps(LossCurves(inner=points, validation=())))
    assert found == {"inner": [list(point) for point in points], "validation": [], "sites": []}
    assert await encoded_in_steps([]) == b"[]"


BAD = [
    ("/v1/rounds?from=-1", 400),
    ("/v1/rounds?from=x", 400),
    ("/v1/rounds?from=", 400),
    ("/v1/rounds?limit=1e3", 400),
    ("/v1/rounds?limit=0", 400),
    ("/v1/rounds?limit=1001", 400),
    ("/v1/rounds?limit=" + "9" * 40, 400),
    ("/v1/rounds/x", 400),
    ("/v1/rounds/99", 404),
    ("/v1/log/99", 404),
    ("/v1/losses?points=1", 400),
    ("/v1", 404),
    ("/v1/statu", 404),
    ("/v2/status", 404),
]


@pytest.mark.parametrize(("path", "status"), BAD)
async def test_refusal_is_a_problem_document(path: str, status: int) -> None:
    async with served() as api:
        answer = await api.ask(path)
        assert (answer.status, answer.kind) == (status, "application/problem+json")
        assert answer.body["status"] == status
        assert_shape(Problem, json.dumps(answer.body))


async def test_only_documented_methods() -> None:
    async with served() as api:
        for method, path in (("POST", "/v1/status"), ("DELETE", "/v1/status"), ("GET", "/v1/control/pause")):
            answer = await api.ask(path, method, token="0123456789abcdef0123")
            assert (answer.status, answer.kind) == (405, "application/problem+json")
            assert answer.headers["Allow"]


async def test_port_in_use_is_a_configuration_error() -> None:
    async with serve_api(FakeView(), FakeControl(), ApiSection(port=0)) as (_, port):
        with pytest.raises(ConfigError, match=f"port {port}"):
            async with serve_api(FakeView(), FakeControl(), ApiSection(port=port)):
                raise AssertionError("two servers on one port")


async def test_long_answers_are_packed_for_who_asks_and_keep_their_tag() -> None:
    async with served(num_rounds=500) as api:
        plain = await api.session.get(api.url + "/v1/columns/rounds", headers={"Accept-Encoding": "identity"})
        packed = await api.session.get(api.url + "/v1/columns/rounds", headers={"Accept-Encoding": "gzip"})
        assert "Content-Encoding" not in plain.headers and packed.headers["Content-Encoding"] == "gzip"
        assert int(packed.headers["Content-Length"]) < int(plain.headers["Content-Length"]) / 3
        assert packed.headers["Vary"] == "Accept-Encoding" and packed.headers["ETag"] == plain.headers["ETag"]
        assert await packed.json() == await plain.json()
        again = {"Accept-Encoding": "gzip", "If-None-Match": packed.headers["ETag"]}
        assert (await api.session.get(api.url + "/v1/columns/rounds", headers=again)).status == 304


async def test_columns_hold_what_the_rows_hold_without_the_unfinished_round() -> None:
    async with served(num_rounds=5) as api:
        columns = (await api.ask("/v1/columns/rounds?from=2")).body
        assert columns["round"] == [2, 3, 4]
        assert columns["bytes_sent"] == [row["bytes_sent"] for row in (await api.ask("/v1/rounds?from=2")).body[:3]]
        assert all(len(values) == 3 for values in columns.values())
        shares = (await api.ask("/v1/participation?limit=4")).body
        assert shares["rounds"] == [1, 2, 3, 4]
        assert {site["peer_id"]: site["tokens"] for site in shares["sites"]}["QmFakeSiteB"] == [8192] * 4


async def test_where_an_invite_is_needed_the_command_makes_one_in_this_run_directory() -> None:
    async with served() as api:
        api.view.admission = "invite"
        assert (await api.ask("/v1/join")).body["command"] == "dilocoxd invite /run"


async def test_join_line_is_a_square_code_with_a_light_margin() -> None:
    async with served() as api:
        line = (await api.ask("/v1/join")).body
        assert line["command"] == f"dilocoxd join {line['address']}"
        rows = line["qr"]
        assert len({len(row) for row in rows} | {len(rows)}) == 1 and set("".join(rows)) == {"0", "1"}
        assert set(rows[0] + rows[-1]) == {"0"} and rows[4][4:11] == "1111111", "margin of 4, then the finder pattern"
