"""Makes the OpenAPI 3.1 document from the table of endpoints and the classes of the answers."""

import functools
from dataclasses import is_dataclass
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from dilocoxd import __version__
from dilocoxd.answers.site import Problem
from dilocoxd.api.endpoints import Endpoint, OpenApiDocument, Parameter
from dilocoxd.api.requests import RequestBody
from dilocoxd.api.responses.problems import PROBLEM_TYPE

TITLES: Final = {
    304: "The client has this answer already (If-None-Match).",
    400: "A parameter or the body is wrong; the detail says which.",
    401: "The bearer token is missing or wrong.",
    403: "Control is off, or the request comes from another web page.",
    404: "There is no such thing.",
    405: "Not with this method.",
    408: "The request did not arrive in time.",
    409: "The daemon cannot do that now; the detail says why.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    421: "The Host header names something that is not this daemon.",
    429: "Too many requests.",
    503: "Not now; the detail says why.",
}
EVERYWHERE: Final = (400, 401, 405, 408, 421, 429)
ON_CONTROL: Final = (403, 413, 415)


@functools.cache
def document(endpoints: tuple[Endpoint, ...]) -> OpenApiDocument:
    """The whole document as plain values."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    _schema_of(Problem, schemas, "serialization")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dilocoxd HTTP API",
            "version": __version__,
            "summary": "What a training site does, what it waits for and why; and a few commands.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schema_of(kind: Any, schemas: dict[str, Any], mode: Literal["serialization", "validation"]) -> Any:
    """Schema of a class of answers or requests, or of a type made of them; classes go to `schemas`."""
    found = TypeAdapter(kind).json_schema(ref_template="#/components/schemas/{model}", mode=mode)
    known = found.pop("$defs", {})
    if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, RequestBody)):
        known[kind.__name__] = found
        found = {"$ref": f"#/components/schemas/{kind.__name__}"}
    schemas.update({name: _exact(schema) if mode == "serialization" else schema for name, schema in known.items()})
    return found


def _exact(schema: Any) -> Any:
    """The same: an answer has all its fields, and no others."""
    if "properties" not in schema:
        return schema
    fields = {
        name: {key: one for key, one in field.items() if key != "default"}
        for name, field in schema["properties"].items()
    }
    return {**schema, "properties": fields, "required": list(fields), "additionalProperties": False}


def _operation(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    """One method of one path."""
    if isinstance(endpoint.answer, str):
        content = {endpoint.answer: {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": _schema_of(endpoint.answer, schemas, "serialization")}}
    good: dict[str, Any] = {"description": endpoint.text, "content": content}
    headers = {name: {"description": text, "schema": {"type": "string"}} for name, text in endpoint.headers}
    if endpoint.is_cached:
        headers["ETag"] = {"description": "For If-None-Match.", "schema": {"type": "string"}}
    if headers:
        good["headers"] = headers
    responses: dict[str, Any] = {"200": good}
    if endpoint.is_cached:
        responses["304"] = {"description": TITLES[304]}
    extra = ON_CONTROL if endpoint.method == "POST" else ()
    for status in sorted({*EVERYWHERE, *extra, *endpoint.problems}):
        schema = {"$ref": "#/components/schemas/Problem"}
        responses[str(status)] = {"description": TITLES[status], "content": {PROBLEM_TYPE: {"schema": schema}}}
    shown: dict[str, Any] = {
        "operationId": endpoint.name.rstrip("_"),
        "summary": endpoint.text,
        "parameters": [_parameter(p) for p in endpoint.parameters],
        "responses": responses,
    }
    if endpoint.body is not None:
        schema = _schema_of(endpoint.body, schemas, "validation")
        needed = bool(schemas[endpoint.body.__name__].get("required"))
        shown["requestBody"] = {"required": needed, "content": {"application/json": {"schema": schema}}}
        shown["security"] = [{"token": []}]
    return shown


def _parameter(given: Parameter) -> dict[str, Any]:
    """One parameter."""
    schema: dict[str, Any] = {"type": "integer", "minimum": given.low, "maximum": given.high}
    if given.default is not None:
        schema["default"] = given.default
    return {
        "name": given.name,
        "in": given.place,
        "required": given.place == "path",
        "description": given.text,
        "schema": schema,
    }
