"""The one way out of a site: every reply is checked against the policy and recorded in the ledger before it is sent."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from cofal.errors import CofalError, UserError
from cofal.federation import messages as m
from cofal.federation.bundle import bundle, is_bundled, unbundle
from cofal.federation.site import Site, open_site
from cofal.privacy.policy import Kind

log = logging.getLogger("cofal")

# What the ledger notes of a request, beside what the handler declares; long texts are cut, since a server chose them.
_NOTED = (
    *("job", "track", "server-round", "method", "budget", "digest", "decision"),
    *("asked", "selection", "session", "round", "names", "survivors"),
)
_LONGEST = 120
_REASON = 1000  # characters of a refusal: it may quote what the server sent


class Request(dict[str, Any]):
    """What the server asks for; a key it left out, or a text for a number, is refused in one line."""

    def __missing__(self, key: str) -> Any:
        raise UserError(f"the request lacks {key!r}; use the same version of cofal at server and sites")

    def number(self, key: str) -> float:
        """A finite number."""
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UserError(f"the request has {key} = {str(value)[:_LONGEST]!r}; send a finite number")
        return float(value)

    def count(self, key: str, most: int = 2**63) -> int:
        """A whole number, zero or more."""
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise UserError(f"the request has {key} = {str(value)[:_LONGEST]!r}; send a whole number from 0 to {most}")
        return value


@dataclass(frozen=True)
class Egress:
    """What a reply sends: its kind, and the parameters that the ledger notes (`epsilon` is held against the policy)."""

    kind: Kind
    parameters: Mapping[str, Any] = field(default_factory=dict)


Handler = Callable[[Site, dict[str, np.ndarray], Request], RecordDict]
Declaration = Callable[[Site, dict[str, np.ndarray], Request], Egress]


class GatedApp(ClientApp):
    """A Flower ClientApp whose every message goes through the gate, also one that nobody here answers.

    Handlers are registered with `answers` alone; one registered with Flower's own decorators is never called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.handlers: dict[str, tuple[Declaration, Handler]] = {}

    def answers(self, message_type: str, *, sends: Kind | Declaration) -> Callable[[Handler], Handler]:
        """Register a handler. `sends` says what its replies carry: one kind, or a function of the request.

        The declaration is asked before the handler, so that a refused request costs no work.
        """
        declare: Declaration = (lambda site, arrays, config: Egress(sends)) if isinstance(sends, Kind) else sends

        def register(handler: Handler) -> Handler:
            self.handlers[message_type] = (declare, handler)
            return handler

        return register

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer `message` for the site named in the node's configuration."""
        asked = message.metadata.message_type
        try:
            site = _site(context)
        except CofalError as failure:  # no site, no ledger, no data: this line is all there is to send
            return Message(Error(m.REFUSED, str(failure)), reply_to=message)
        egress, config = Egress(Kind.NOTHING), Request()
        content = RecordDict()
        error: Error | None = None
        try:
            config = Request(m.config_of(message.content))
            declare, handler = self._find(asked, site)
            arrays = m.arrays_of(unbundle(message.content))
            egress = declare(site, arrays, config)
            site.settings.policy.check(site.name, egress.kind, egress.parameters.get("epsilon", 0.0))
            content = handler(site, arrays, config)
            content[m.EGRESS] = ConfigRecord({"kind": egress.kind.value})
        except CofalError as failure:
            code = m.REFUSED if isinstance(failure, UserError) else m.CLIENT_RAISED
            error = Error(code, str(failure)[:_REASON])
        except Exception as failure:
            # The text of an unforeseen exception may hold data: it stays in the site's own log.
            log.exception("site %s failed to answer %s", site.name, asked[:_LONGEST])
            error = Error(m.CLIENT_RAISED, f"{type(failure).__name__}; the site's own log has the details")
        try:
            site.ledger.append(
                phase=f"{asked} {config.get('job', '')}".strip()[:_LONGEST],
                kind=egress.kind.value,
                fields=[] if error else m.fields_of(content),
                parameters={**_noted(config), **egress.parameters},
                refused=str(error.reason) if error else "",
            )
        except CofalError as failure:
            return Message(Error(m.CLIENT_RAISED, f"site {site.name} sends nothing: {failure}"), reply_to=message)
        if is_bundled(message.content):  # answered in the form it was asked in
            content = bundle(content)
        return Message(error or content, reply_to=message)

    def _find(self, asked: str, site: Site) -> tuple[Declaration, Handler]:
        if asked not in self.handlers:
            known = ", ".join(sorted(self.handlers))
            raise UserError(f"site {site.name} knows no request {asked[:_LONGEST]!r}; known: {known}")
        return self.handlers[asked]


def _site(context: Context) -> Site:
    if "site" not in context.node_config:
        raise UserError("this client was started without a site; give node-config 'site=\"FOLDER\"'")
    return open_site(str(context.node_config["site"]))


def _noted(config: Request) -> dict[str, Any]:
    return {
        key: value if isinstance(value, int) else str(value)[:_LONGEST]
        for key in _NOTED
        if (value := config.get(key, "")) != ""
    }
