"""Who asks, and what they may."""

import msgspec

from limelight.errors import Forbidden, ModelNotFound
from limelight.generation import Share
from limelight.quoting import encodable, quoted

INFER, OBSERVE, ADMIN = "infer", "observe", "admin"
_PRIVATE = "private "


class Principal(msgspec.Struct, frozen=True):
    """The name given to a key, and what the key may do. Never the key itself.

    Attributes:
        models: names that it may use; None: all.
        max_num_requests: live requests that it may have; None: no limit of its own.
        best_priority: the lowest priority value that its requests may have; None: any.
        weight: of its share, where requests compete.
        tokens_per_minute, burst_tokens: the quota of its share; None: no quota, and a minute's tokens.
        private_cache: it shares cached prefixes with nobody.
    """

    name: str
    scopes: frozenset[str]
    models: frozenset[str] | None = None
    max_num_requests: int | None = None
    best_priority: int | None = None
    weight: float = 1.0
    tokens_per_minute: float | None = None
    burst_tokens: float | None = None
    private_cache: bool = False

    def share(self, user: str | None = None) -> Share:
        """Whose turn its requests take, and on whose quota they draw: always its own.

        Args:
            user: for whom it asks, if it is a gateway's: each takes turns for itself.
        """
        return Share(
            name=self.name if user is None else encodable(f"{self.name}/{user}"),
            weight=self.weight,
            tokens_per_minute=self.tokens_per_minute,
            burst_tokens=self.burst_tokens,
            payer=self.name,
        )

    def may_use(self, model: str) -> bool:
        """Whether it may use the model, or adapter, of this name."""
        return self.models is None or model in self.models

    def check_model(self, model: str) -> None:
        """Raises ModelNotFound for a model that it may not use, as if there were none of this name."""
        if not self.may_use(model):
            raise ModelNotFound(
                f"The model {quoted(model)} is not served to this API key (GET /v1/models lists those that are)",
                param="model",
            )

    def check_priority(self, priority: int) -> None:
        """Raises Forbidden for a priority that it may not have."""
        if self.best_priority is not None and priority < self.best_priority:
            raise Forbidden(
                f"priority is {priority}; this API key's requests may have {self.best_priority} or more (lower is "
                "served earlier)",
                param="priority",
            )

    def cache_salt(self, given: str | None, *, private: bool) -> str | None:
        """What keeps its cached prefixes apart: the salt that it gives, and its name if it shares with nobody.

        Args:
            private: nobody shares here.
        """
        if private or self.private_cache:
            return f"{_PRIVATE}{len(self.name)} {self.name}{given or ''}"
        return (
            f"shared {given}" if given is not None and given.startswith(_PRIVATE) else given
        )  # nobody poses as another


ANONYMOUS = Principal("anonymous", frozenset({INFER, OBSERVE}))
STRANGER = Principal("anonymous", frozenset())
"""Who has no key where one is needed, on a route that answers everybody."""
