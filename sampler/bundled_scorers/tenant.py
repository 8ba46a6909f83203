"""The bundled scorers as a tenant of the sampler: importing this module registers them."""

from sampler.bundled_scorers import judged, llm_judge, mathematics, relative, structured, text
from sampler.core.tenant import Tenant

__all__ = ["TENANT", "judged", "llm_judge", "mathematics", "relative", "structured", "text"]
TENANT = Tenant()
