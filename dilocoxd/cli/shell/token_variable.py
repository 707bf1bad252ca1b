"""Decides which variable of the environment holds an API token; help names it, and loads no client for that."""

from typing import Final

TOKEN_VARIABLE: Final = "DILOCOXD_API_TOKEN"
