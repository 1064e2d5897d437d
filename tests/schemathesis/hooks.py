"""What schemathesis cannot know of our calls: how TOML is sent, and whose token it shows."""

import os

import schemathesis


@schemathesis.serializer("application/toml")
def toml(ctx, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


@schemathesis.hook
def before_call(ctx, case, kwargs):
    """It finds its own token among the others. With that gone all would be 401 from then on."""
    own = os.environ.get("OWN_TOKEN")
    if case.method == "DELETE" and own in (case.path_parameters or {}).values():
        case.path_parameters = {"name": "another"}
