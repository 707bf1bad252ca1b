"""Makes the OpenAPI 3.1 document from the table of endpoints and the models of the answers."""

import functools
from typing import Any, Final

from pydantic import TypeAdapter

from dilocoxd import __version__
from dilocoxd.api import models
from dilocoxd.api.endpoints import Endpoint, Parameter

PROBLEM_TYPE: Final = "application/problem+json"
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
def document(endpoints: tuple[Endpoint, ...]) -> dict[str, Any]:
    """The whole document as plain values."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation(endpoint, schemas)
    schema_of(models.Problem, schemas, "serialization")
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


def schema_of(model: Any, schemas: dict[str, Any], mode: Any) -> dict[str, Any]:
    """Schema of a model or of a type made of models; models go to `schemas`."""
    found = TypeAdapter(model).json_schema(ref_template="#/components/schemas/{model}", mode=mode)
    schemas.update(found.pop("$defs", {}))
    if isinstance(model, type) and issubclass(model, models.Model):
        schemas[model.__name__] = found
        return {"$ref": f"#/components/schemas/{model.__name__}"}
    return found


def operation(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    """One method of one path."""
    if isinstance(endpoint.answer, str):
        content = {endpoint.answer: {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": schema_of(endpoint.answer, schemas, "serialization")}}
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
        "parameters": [parameter(p) for p in endpoint.parameters],
        "responses": responses,
    }
    if endpoint.body is not None:
        schema = schema_of(endpoint.body, schemas, "validation")
        needed = bool(schemas[endpoint.body.__name__].get("required"))
        shown["requestBody"] = {"required": needed, "content": {"application/json": {"schema": schema}}}
        shown["security"] = [{"token": []}]
    return shown


def parameter(given: Parameter) -> dict[str, Any]:
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
