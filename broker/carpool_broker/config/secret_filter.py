"""Collects the secret values that must not be kept on disk with catalogs and approvals.

Knows nothing of: files, how stored data is searched for these values (`catalog_cache`, `approval_store`).
"""

from carpool_broker.config.configuration import Configuration
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model.effects import SaveApprovals
from carpool_broker.storage.approval_store import ApprovalStore
from carpool_protocol.carrier.remote import secrets_of
from carpool_protocol.ids import PoolKey


class SecretFilter:
    """The secret values of one broker."""

    def __init__(self, core: BrokerCore, configuration: Configuration, approvals: ApprovalStore) -> None:
        self._core = core
        self._configuration = configuration
        self._approvals = approvals

    def for_pool(self, key: PoolKey) -> list[str] | None:
        """Values that must not be kept with a pool's catalog. None if the pool is unknown, and with it its
        values.
        """
        spec = next((each for each in self._core.sources.wanted_pools().pools if each.key == key), None)
        if spec is None:
            return None
        own = set(self._configuration.own_environment().values())
        return [*(secrets_of(spec.env) - own), *self._configuration.secrets()]

    def keep_approvals(self, effect: SaveApprovals) -> None:
        """Keep the approvals of a server, without secret values."""
        approved = self._core.registry.approvals.approved.get(effect.pin)
        if approved is not None:
            secrets = [*self._configuration.secrets()]
            for key in self._core.registry.pinned_servers().get(effect.pin, ()):
                secrets += self.for_pool(key) or ()
            self._approvals.save(effect.pin, approved, secrets)
