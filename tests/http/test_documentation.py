"""The OpenAPI document and the page: complete, true to the types, and served without a network."""

import re
from html.parser import HTMLParser

import jsonschema_rs
import msgspec
import pytest

from limelight.http import create_app
from limelight.http.auth import PUBLIC
from limelight.http.openapi.document import openapi_document
from limelight.http.openapi.shapes import SHAPES
from limelight.http.protocol.fields.endpoints import ENDPOINTS
from limelight.http.protocol.fields.field import Effect
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, COMPLETIONS, chat_body, completion_body, streamed

pytestmark = pytest.mark.anyio


def handlers():
    """Every route that the application answers, by method and path."""
    app = create_app(scripted_engine())
    return {
        (method, route.path): handler
        for route in app.routes
        for method, (handler, _) in route.route_handler_map.items()
        if method not in ("OPTIONS", "HEAD")  # HEAD is GET without a body
    }


def test_every_route_is_documented_and_nothing_else_is():
    routes = handlers()
    assert set(SHAPES) == set(routes)
    for name, shape in SHAPES.items():
        assert shape.public == bool(routes[name].opt.get("public") == PUBLIC["public"]), name


def test_every_endpoint_of_the_table_documents_exactly_the_fields_that_are_accepted():
    schemas = openapi_document()["components"]["schemas"]
    bodies = {path: shape.body for (_, path), shape in SHAPES.items() if shape.body is not None}
    assert bodies.keys() == {endpoint.path for endpoint in ENDPOINTS}
    for endpoint in ENDPOINTS:
        accepted = {name for name, field in endpoint.fields.items() if field.effect is not Effect.REFUSED}
        names = {field.encode_name for field in msgspec.structs.fields(bodies[endpoint.path])}
        assert accepted <= names <= endpoint.fields.keys(), endpoint.path
        assert schemas[bodies[endpoint.path].__name__]["properties"].keys() == accepted, endpoint.path


async def test_the_document_is_served_twice_and_is_valid(shared_client):
    documents = [await shared_client.get(path) for path in ("/openapi.json", "/schema/openapi.json")]
    assert documents[0].json() == documents[1].json() == msgspec.json.decode(msgspec.json.encode(openapi_document()))
    assert all(document.headers["content-type"] == "application/json" for document in documents)
    document = documents[0].json()
    for name, schema in document["components"]["schemas"].items():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
        assert schema.get("description"), name
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations) == len(SHAPES)


def validator(name):
    document = openapi_document()
    return jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": document["components"]})


async def test_answers_and_events_are_what_the_document_says(shared_client):
    asked = {"max_tokens": 3, "n": 2, "return_token_ids": True, "return_prompt_text": True}
    for path, body, whole, event in (
        (CHAT, chat_body(logprobs=True, top_logprobs=2, **asked), "ChatCompletion", "ChatChunk"),
        (COMPLETIONS, completion_body(logprobs=2, **asked), "TextCompletion", "TextCompletion"),
    ):
        validator(whole).validate((await shared_client.post(path, json=body)).json())
        for chunk in streamed(await shared_client.post(path, json=body | {"stream": True})):
            validator(event).validate(chunk)


class Links(HTMLParser):
    """Everything that a page makes a browser load, and every place that it leads to."""

    def __init__(self):
        super().__init__()
        self.links = []
        self.anchors = set()
        self.tags = set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "srcset", "action", "data")]
        self.anchors |= {f"#{value}" for name, value in attributes if name == "id"}


async def test_the_page_loads_nothing_from_elsewhere_and_its_links_lead_somewhere(shared_client):
    page = await shared_client.get("/docs")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    found = Links()
    found.feed(page.text)
    assert not re.search(r"https?:|//|@import|url\(", page.text)
    assert not {"script", "iframe", "img", "object"} & found.tags
    for link in found.links:
        if link.startswith("#"):
            assert link in found.anchors
        else:
            answer = await shared_client.get(f"/{link}")
            assert answer.status_code == 200, link
            assert not re.search(rb"@import|url\(", answer.content) or not link.endswith(".css")


async def test_the_page_has_every_field_with_its_effect(shared_client):
    page = (await shared_client.get("/docs")).text
    for endpoint in ENDPOINTS:
        section = page.split(f'<h2 id="post-{endpoint.path}">')[1].split("<h2")[0]
        for name, field in endpoint.fields.items():
            assert f"<td><code>{name}</code></td><td>{field.effect.value}</td>" in section
