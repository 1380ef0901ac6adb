"""Patterns of secrets: shapes of issuers' tokens, and command lines that contain a password.

A command line is plain text, or a list as printed by Python. In the patterns of command lines, the
group ``value`` is the password.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple


class Shape(NamedTuple):
    """Shape of the secrets that one issuer creates."""

    issuer: str
    pattern: str
    """Regular expression for the whole secret. No alphanumeric character may precede it."""
    source: str
    """Document that specifies the shape."""


_GITLEAKS: Final = "gitleaks.toml"
_SCANNING: Final = "GitHub secret scanning, supported patterns"

SHAPES: Final = (
    Shape("Hugging Face", r"(?:hf|api_org)_[A-Za-z0-9]{8,}", _GITLEAKS),
    Shape("OpenAI, Anthropic, OpenRouter, DeepSeek", r"sk-[A-Za-z0-9_-]{8,}", _GITLEAKS),
    Shape("Replicate", r"r8_[A-Za-z0-9]{20,}", _SCANNING),
    Shape("Groq", r"gsk_[A-Za-z0-9]{20,}", _SCANNING),
    Shape("xAI", r"xai-[A-Za-z0-9]{20,}", _SCANNING),
    Shape("Perplexity", r"pplx-[A-Za-z0-9]{20,}", _GITLEAKS),
    Shape("NVIDIA NGC and NIM", r"nvapi-[\w-]{20,}", _SCANNING),
    Shape("Weights & Biases", r"wandb_v1_\w{20,}", _SCANNING),
    Shape("LangSmith", r"lsv2_(?:pt|sk)_\w{20,}", _SCANNING),
    Shape("Pinecone", r"pcsk_\w{20,}", _SCANNING),
    Shape("Kaggle", r"KGAT_[A-Za-z0-9]{20,}", _SCANNING),
    Shape("GitHub", r"gh[pousr]_[A-Za-z0-9]{8,}", _GITLEAKS),
    Shape("GitHub, fine-grained", r"github_pat_\w{8,}", _GITLEAKS),
    Shape("GitLab", r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat|ffct|oas)-[\w-]{8,}",
          "GitLab, token prefixes"),
    Shape("Bitbucket, Atlassian", r"AT[ABC]TT3[\w=-]{20,}", _GITLEAKS),
    Shape("PyPI", r"pypi-[\w-]{16,}", _GITLEAKS),
    Shape("npm", r"npm_[A-Za-z0-9]{16,}", _GITLEAKS),
    Shape("RubyGems", r"rubygems_[a-f0-9]{32,}", _GITLEAKS),
    Shape("crates.io", r"cio[A-Za-z0-9]{32}\b", _SCANNING),
    Shape("NuGet", r"oy2[a-z0-9]{43}\b", _SCANNING),
    Shape("Docker Hub", r"dckr_(?:pat|oat)_[\w-]{16,}", _SCANNING),
    Shape("AWS access key", r"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{12,}", "AWS IAM, unique identifiers"),
    Shape("Google API key", r"AIza[\w-]{20,}", _GITLEAKS),
    Shape("Google OAuth", r"(?:GOCSPX-|ya29\.)[\w.-]{16,}", _SCANNING),
    Shape("Azure AD client secret", r"[\w~.-]{3}[78]Q~[\w~.-]{31,34}", _GITLEAKS),
    Shape("Alibaba Cloud", r"LTAI[A-Za-z0-9]{12,}", _GITLEAKS),
    Shape("Tencent Cloud", r"AKID[A-Za-z0-9]{28,}", _SCANNING),
    Shape("DigitalOcean", r"do[opr]_v1_[a-f0-9]{32,}", _GITLEAKS),
    Shape("Databricks", r"dapi[a-f0-9]{32}", _GITLEAKS),
    Shape("Heroku", r"HRKU-[\w-]{16,}", _SCANNING),
    Shape("HashiCorp Vault", r"hv[sbr]\.[\w-]{16,}", _GITLEAKS),
    Shape("Terraform Cloud", r"[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{16,}", _GITLEAKS),
    Shape("Pulumi", r"pul-[a-f0-9]{40}", _GITLEAKS),
    Shape("Doppler", r"dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{16,}", _GITLEAKS),
    Shape("Fly.io", r"fm[12][ar]?_[A-Za-z0-9+/=]{20,}", _GITLEAKS),
    Shape("Netlify", r"nfp_[A-Za-z0-9]{20,}", _SCANNING),
    Shape("Supabase", r"sb(?:p|_secret)_[\w-]{20,}", _SCANNING),
    Shape("PlanetScale", r"pscale_(?:tkn|pw|oauth)_[\w.=-]{20,}", _GITLEAKS),
    Shape("Grafana", r"gl(?:sa|c)_[A-Za-z0-9+/=_]{20,}", _GITLEAKS),
    Shape("New Relic", r"NR(?:AK|JS|II)-[\w-]{16,}", _GITLEAKS),
    Shape("Sentry", r"sntry[su]_[\w+/=-]{20,}", _GITLEAKS),
    Shape("Dynatrace", r"dt0[a-z]\d{2}\.[A-Z0-9]{24}\.[A-Z0-9]{20,}", _GITLEAKS),
    Shape("Prefect", r"pn[ub]_[A-Za-z0-9]{20,}", _GITLEAKS),
    Shape("Slack", r"(?:xoxe\.)?xox[abeoprs]-[\w-]{8,}|xapp-[\w-]{8,}", _GITLEAKS),
    Shape("Slack webhook",
          r"hooks\.slack\.com/(?:services|workflows|triggers)/[\w/+-]{20,}", _GITLEAKS),
    Shape("Discord webhook", r"discord(?:app)?\.com/api/webhooks/\d+/[\w-]{20,}", _SCANNING),
    Shape("Telegram bot", r"\d{5,16}:A[\w-]{34}\b", _GITLEAKS),
    Shape("Stripe", r"(?:[sr]k_(?:live|test|prod)|whsec)_[A-Za-z0-9+/=]{8,}", _GITLEAKS),
    Shape("Square", r"sq0[a-z]{3}-[\w-]{20,}", _GITLEAKS),
    Shape("PayPal Braintree",
          r"access_token\$(?:production|sandbox)\$[a-z0-9]+\$[a-f0-9]{16,}", _SCANNING),
    Shape("Shopify", r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{16,}", _GITLEAKS),
    Shape("SendGrid", r"SG\.[\w-]{16,}\.[\w-]{16,}", _GITLEAKS),
    Shape("Mailgun", r"key-[a-f0-9]{32}\b", _GITLEAKS),
    Shape("Mailchimp", r"[a-f0-9]{32}-us\d{1,2}\b", _GITLEAKS),
    Shape("Twilio", r"SK[a-f0-9]{32}\b", _GITLEAKS),
    Shape("Postman", r"PMAK-[a-f0-9]{24}-[a-f0-9]{20,}", _GITLEAKS),
    Shape("Linear, Notion", r"(?:lin_api_|ntn_)[A-Za-z0-9]{20,}", _GITLEAKS),
    Shape("age identity", r"AGE-SECRET-KEY-1[A-Z0-9]{30,}", _GITLEAKS),
    Shape("JSON Web Token", r"eyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*){0,3}", "RFC 7519"),
)  # fmt: skip
"""Shapes of secrets that are recognized without a name."""

_SEPARATOR: Final = r"(?:[^\S\n]|[\"',])+"
"""Separator between two items of a command line, or of a list as printed by Python."""
_ITEM: Final = r"[^\s\"',]+"
_SPAN: Final = r"[^\n;|&]{0,200}?[\s\"',]"
"""Text between a command and its flag; bounded, because the search would be quadratic otherwise."""
_BEHIND_FLAG: Final = r"(?P<value>(?!\[redacted\])[^\s\"',;)\]]+)"
_COMMANDS: Final = (
    # MySQL's clients and 7z expect the value directly behind the flag.
    rf"\b(?:mysql|mariadb|mycli|7z)[\w-]*\b{_SPAN}-p(?=[^\s\"',-])",
    # These clients interpret a separate word after -p as a database, but many users type a
    # password. Words in lower case are not hidden.
    rf"\b(?:mysql|mariadb|mycli)[\w-]*\b{_SPAN}-p{_SEPARATOR}(?![-<>|&;$])"
    r"(?=[a-z_-]*[^\sa-z_\"',-])",
    rf"\b(?:sshpass|mongo\w*|login|cqlsh|beeline|snowsql|rabbitmqadmin)\b{_SPAN}"
    r"-p[\s\"',=]*(?!-)",
    rf"\bredis-cli\b{_SPAN}-a[\s\"',=]*",
    rf"\b(?:curl|smbclient|https?|xh)\b{_SPAN}"
    r"(?:-[uUa]|--(?:proxy-)?user)[\s\"',=]*(?=[^\s\"',:%]*[:%][^\s\"',])",
    rf"\bldap[a-z]+\b{_SPAN}-w[\s\"',=]*",
    rf"\b(?:zip|unzip|sqlcmd|bcp|isql|tsql|ipmitool|mosquitto_\w+)\b{_SPAN}-P[\s\"',=]*",
    rf"\bopenssl\b{_SPAN}(?:pass:|-[kK]{_SEPARATOR})",
    rf"\bsnmp\w+\b{_SPAN}-[AX][\s\"',=]*",
    rf"\blftp\b{_SPAN}-u[\s\"',=]*[^\s\"',]+,",
    rf"\bhtpasswd{_SEPARATOR}-\w*b\w*(?:{_SEPARATOR}{_ITEM}){{1,2}}{_SEPARATOR}"
    rf"(?={_ITEM}[\"'\])]*[^\S\n]*(?:$|[\n;|&]))",
    # For other programs a value with letters and digits: -p8080:80 is a port.
    r"(?<![\w.-])-p(?=[^\s\"',/:=]*\d)(?=[^\s\"',/:=]*[A-Za-z])(?=[^\s\"',/:=]{6})",
)
"""Commands with a one-letter flag for a password, up to the start of the password."""
_FLAG: Final = re.compile(r"[\s\"',]-|-p")
"""Fast pre-check that matches every text in which a pattern of ``_COMMANDS`` matches."""
_PLACES: Final = (
    rf"\b(?:alias{_SEPARATOR}set|config{_SEPARATOR}host{_SEPARATOR}add)"
    rf"{_SEPARATOR}{_ITEM}{_SEPARATOR}https?:{_ITEM}{_SEPARATOR}{_ITEM}{_SEPARATOR}",
    rf"\b(?:sqlplus|sqlldr|sqlcl|expdp|impdp)\b{_SPAN}[\w$#.]{{1,64}}/(?=[^\s\"'@/]*(?:@|\s|$))",
    rf"\bconfig(?:ure)?\b{_SPAN}[\w/:.-]{{0,64}}[_.](?:secret|token|password|authToken"
    r"|(?:access|api|secret)_key)"
    rf"{_SEPARATOR}(?=[a-z]*[^\sa-z])",
    rf"\b(?:add-)?authtoken{_SEPARATOR}(?=[a-z]*[^\sa-z])",
    rf"\bIDENTIFIED{_SEPARATOR}(?:WITH{_SEPARATOR}{_ITEM}{_SEPARATOR})?BY{_SEPARATOR}",
    r"(?i:\bidentified\ by)\ [\"']",
    rf"(?i:\bset{_SEPARATOR}password{_SEPARATOR}for{_SEPARATOR})[^\n=]{{1,128}}=[\s\"']*",
)
"""Commands with a secret as a positional argument, up to the start of the secret."""
_AT_PLACE: Final = re.compile(
    "alias|config|sqlplus|sqlldr|sqlcl|[ei][xm]pdp|authtoken|jdbc:oracle|(?i:identified|password)"
)
"""Fast pre-check that matches every text in which ``_PLACES`` or ``_ORACLE`` match."""
_ORACLE: Final = (
    r"jdbc:oracle:\w{1,16}:[^\s/@\"']{1,64}/(?P<value>(?!\[redacted\])[^\s\"']{1,128})(?=@)"
)
"""Login in Oracle's URLs, which have no ``//`` before the login."""


def command_patterns(text: str) -> list[re.Pattern[str]]:
    """Return the patterns of command lines that can match in ``text``, after a fast pre-check."""
    with_flags = [] if _FLAG.search(text) is None else _commands()
    return with_flags if _AT_PLACE.search(text) is None else with_flags + _places()


# Compiled at the first search, since most processes never search a text.
@cache
def _commands() -> list[re.Pattern[str]]:
    return [re.compile(command + _BEHIND_FLAG) for command in _COMMANDS]


@cache
def _places() -> list[re.Pattern[str]]:
    return [*(re.compile(place + _BEHIND_FLAG) for place in _PLACES), re.compile(_ORACLE)]
