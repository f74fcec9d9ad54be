"""The page's routes: who may call them is decided in `sessions` and `guard`, what they do in `desk`.

Annotations are not postponed here: FastAPI reads those of the routes, which name dependencies of `create_app`.
"""

import mimetypes
from collections.abc import Iterable
from importlib.resources import files
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.types import ASGIApp

from cofal.errors import CofalError, UserError
from cofal.labeling.web.brake import TooMany
from cofal.labeling.web.desk import Desk
from cofal.labeling.web.guard import Guard
from cofal.labeling.web.sessions import LIFETIME, Session, Sessions


def _whole(text: str) -> str:
    """JSON can name half a character, which no hash, file or answer can hold."""
    text.encode()
    return text


Text = Annotated[str, AfterValidator(_whole)]
Key = Annotated[Text, Field(max_length=64)]
Seconds = Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Login(_Body):
    name: Annotated[Text, Field(max_length=100)]
    token: Annotated[Text, Field(max_length=200)]


class Labelled(_Body):
    key: Key
    label: Text
    seconds: Seconds


class Skipped(_Body):
    key: Key
    reason: Text
    seconds: Seconds


class Later(_Body):
    key: Key


class Undone(_Body):
    action: int


class Settled(_Body):
    """A class, or the reason of a skip."""

    key: Key
    label: Text | None = None
    reason: Text | None = None


def create_app(desk: Desk, sessions: Sessions, *, names: Iterable[str], port: int, tls: bool) -> ASGIApp:
    """The whole server: `names` are the host names it may be asked under, at `port`."""
    app = FastAPI(title="cofal", docs_url=None, redoc_url=None, openapi_url=None)
    # Cookies do not know ports: the pages of two sites on one machine need two names. `__Host-` ties it to this host.
    cookie = f"__Host-cofal-{port}" if tls else f"cofal-{port}"

    def session(request: Request) -> Session:
        found = sessions.read(request.cookies.get(cookie, ""))
        if found is None:
            raise HTTPException(401, "log in first")
        return found

    def changing(found: Annotated[Session, Depends(session)], x_csrf: Annotated[str, Header()] = "") -> str:
        """The annotator behind a request that changes something."""
        if x_csrf != found.csrf:
            raise HTTPException(403, "this request did not come from the page; load the page again")
        return found.annotator

    Looking = Annotated[Session, Depends(session)]
    Annotator = Annotated[str, Depends(changing)]

    def with_cookie(response: Response, value: str) -> Response:
        response.set_cookie(cookie, value, max_age=LIFETIME, path="/", secure=tls, httponly=True, samesite="strict")
        return response

    # --- pages and their files

    @app.get("/", include_in_schema=False)
    def page(request: Request, key: str = "") -> Response:
        if key:
            entered = sessions.by_link(key)
            response: Response = RedirectResponse("/" if entered else "/login", 303)
            return with_cookie(response, entered) if entered else response
        if sessions.read(request.cookies.get(cookie, "")) is None:
            return RedirectResponse("/login", 303)
        return HTMLResponse(_file("page.html"))

    @app.get("/login")
    def login_page() -> Response:
        return HTMLResponse(_file("login.html"))

    static = {file.name: file.read_bytes() for file in files(__package__).joinpath("static").iterdir()}

    @app.get("/static/{name}")
    def static_file(name: str) -> Response:
        if name not in static:
            raise HTTPException(404, "no such file")
        return Response(static[name], media_type=mimetypes.guess_type(name)[0])

    @app.get("/image/{key}.png")
    def image(key: str, _: Looking) -> Response:
        return Response(desk.pictures.png(key), media_type="image/png")

    @app.get("/full/{key}.png")
    def full_image(key: str, _: Looking) -> Response:
        return Response(desk.pictures.full_png(key), media_type="image/png")

    # --- coming and going

    @app.get("/api/door")
    def door() -> dict[str, bool]:
        return {"by_token": sessions.by_token}

    @app.post("/api/login")
    def login(body: Login, request: Request) -> Response:
        address = request.client.host if request.client else ""
        entered = sessions.by_login(body.name, body.token, address)
        if entered is None:
            raise HTTPException(403, "name and token do not fit")
        return with_cookie(JSONResponse({}), entered)

    @app.post("/api/logout")
    def logout(annotator: Annotator) -> Response:
        desk.store.release(annotator)
        response = JSONResponse({})
        response.delete_cookie(cookie, path="/", secure=tls, httponly=True, samesite="strict")
        return response

    @app.get("/api/session")
    def facts(found: Looking) -> dict[str, Any]:
        return {
            "site": desk.site.name,
            "annotator": found.annotator,
            "classes": desk.site.train.classes,
            "csrf": found.csrf,
            "by_token": sessions.by_token,
        }

    # --- work

    @app.get("/api/next")
    def next_(found: Looking) -> dict[str, Any]:
        return desk.next(found.annotator)

    @app.get("/api/item/{key}")
    def item(key: str, found: Looking) -> dict[str, Any]:
        return desk.item(found.annotator, key)

    @app.get("/api/around/{key}")
    def around(key: str, found: Looking) -> dict[str, Any]:
        return desk.around(found.annotator, key)

    @app.get("/api/progress")
    def progress(_: Looking) -> dict[str, Any]:
        return desk.progress()

    @app.post("/api/label")
    def label(body: Labelled, annotator: Annotator) -> dict[str, Any]:
        desk.label(annotator, body.key, body.label, body.seconds)
        return desk.next(annotator)

    @app.post("/api/skip")
    def skip(body: Skipped, annotator: Annotator) -> dict[str, Any]:
        desk.skip(annotator, body.key, body.reason, body.seconds)
        return desk.next(annotator)

    @app.post("/api/later")
    def later(body: Later, annotator: Annotator) -> dict[str, Any]:
        desk.later(annotator, body.key)
        return desk.next(annotator)

    @app.post("/api/undo")
    def undo(body: Undone, annotator: Annotator) -> dict[str, Any]:
        undone = desk.undo(annotator, body.action)
        return {**desk.next(annotator), "undone": undone}

    @app.get("/api/review")
    def review(found: Looking, state: str = "", label: str = "", annotator: str = "", page: int = 0) -> dict[str, Any]:
        return desk.review(found.annotator, state=state, label=label, annotator=annotator, page=page)

    @app.get("/api/disagreements")
    def disagreements(_: Looking) -> dict[str, Any]:
        return desk.disagreements()

    @app.post("/api/resolve")
    def resolve(body: Settled, annotator: Annotator) -> dict[str, Any]:
        desk.resolve(annotator, body.key, body.label, body.reason)
        return desk.disagreements()

    @app.exception_handler(CofalError)
    def told(_: Request, error: CofalError) -> Response:
        if isinstance(error, TooMany):
            return JSONResponse({"detail": str(error)}, 429, {"Retry-After": str(error.seconds)})
        return JSONResponse({"detail": str(error)}, 409 if isinstance(error, UserError) else 503)

    @app.exception_handler(RequestValidationError)
    def garbled(_: Request, error: RequestValidationError) -> Response:
        """What was sent is not repeated: it may be anything, also what an answer cannot hold."""
        where = ", ".join(sorted({str(each["loc"][-1])[:40] for each in error.errors()}))
        return JSONResponse({"detail": f"this is no request of the page ({where!a}); load the page again"}, 422)

    return Guard(app, names, port, tls)


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
