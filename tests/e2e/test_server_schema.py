"""Bodies made from the server's own description: nothing of what it says it takes may make it fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra [serve]")
pytest.importorskip("schemathesis", reason="needs the package `schemathesis`")

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from tests.support.checkpoint import write_model
from tests.support.serving import make_server, served


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = write_model(tmp_path_factory.mktemp("described") / "tiny", context=64)
    with served(make_server(folder)) as address:
        yield address


PATHS = (
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
    ("GET", "/api/dashboard"),
)


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_no_call_makes_the_server_fail(url: str, method: str, path: str) -> None:
    description = schemathesis.openapi.from_url(f"{url}/openapi.json")
    answered: list[int] = []

    @settings(
        max_examples=60 if method == "POST" else 5,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=description[path][method].as_strategy())
    def check(case: Any) -> None:
        given = case.body
        for model in (None, "tiny"):  # else hardly any body would get as far as a model
            if isinstance(given, dict) and model is not None:
                case.body = {**given, "model": model}
            response = case.call()
            answered.append(response.status_code)
            assert response.status_code < 500, response.text
            assert '"server_error"' not in response.text  # in a stream, after its status
            if response.status_code >= 400:
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}
            if not isinstance(given, dict):
                break

    check()
    assert answered


def test_every_path_is_tried(url: str) -> None:
    description = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [operation.ok() for operation in description.get_all_operations()]
    assert {(each.method.upper(), each.path) for each in operations} == set(PATHS)
