"""The profile of the AWS tools: what `~/.aws` says of a server and its credentials, where the environment does not.

Files and profile are named as for those tools: `AWS_SHARED_CREDENTIALS_FILE`, `AWS_CONFIG_FILE`, `AWS_PROFILE`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from configparser import Error, RawConfigParser
from pathlib import Path

from millpond.errors import Invalid

__all__ = ("ENDPOINTS", "profile_settings")

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""The variables that name a server, the first that is set counts."""

_DEFAULT = "default"
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
"""The variable that names each file, and its place without; of what both say, the latter counts."""
_KEYS = {
    "aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}  # fmt: skip
_SERVER = {"region": ("AWS_REGION", "AWS_DEFAULT_REGION"), "endpoint_url": ENDPOINTS}
_IN_ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
"""With one of them, the environment has the credentials: key, secret and token are never of two places."""
_ELSEWHERE = ("role_arn", "sso_session", "sso_start_url", "credential_process")


def profile_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The settings of the store that the profile has and the environment lacks: keys, `region`, `endpoint`.

    Raises: `Invalid`, kind `objects_config`, for a profile that is named and not there, or has its keys elsewhere.
    """
    named = environment.get("AWS_PROFILE", "")
    said: dict[str, str] = {}
    there = False
    for variable, default in _FILES.items():
        file = Path(environment.get(variable) or default).expanduser()
        section = named or _DEFAULT
        if variable == "AWS_CONFIG_FILE" and section != _DEFAULT:
            section = f"profile {section}"
        parsed = _parsed(file)
        if parsed.has_section(section):
            there = True
            said.update({name: value for name, value in parsed.items(section) if value})
    if named and not there:
        raise Invalid("there is no such profile", kind="objects_config", profile=named,
                      hint="AWS_PROFILE names one of ~/.aws/credentials or ~/.aws/config")  # fmt: skip
    settings = {name.removesuffix("_url"): said[name] for name, variables in _SERVER.items()
                if name in said and not any(environment.get(variable) for variable in variables)}  # fmt: skip
    if any(environment.get(variable) for variable in _IN_ENVIRONMENT):
        return settings
    keys = {setting: said[name] for name, setting in _KEYS.items() if name in said}
    if named and not keys and any(name in said for name in _ELSEWHERE):
        raise Invalid(
            "the profile has no keys of its own", kind="objects_config", profile=named,
            hint="have its keys in the environment: aws configure export-credentials writes them",
        )  # fmt: skip
    return settings | keys


def _parsed(file: Path) -> RawConfigParser:
    parser = RawConfigParser(strict=False, allow_no_value=True, default_section="")
    try:
        parser.read(file, encoding="utf-8")
    except OSError:
        pass  # it is another user's: as if it were not there
    except (Error, UnicodeDecodeError):  # whose words may have a secret
        raise Invalid("the file of profiles cannot be read", kind="objects_config", file=file,
                      hint="it has lines such as [default] and aws_access_key_id = …") from None  # fmt: skip
    return parser
