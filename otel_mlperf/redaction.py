"""What in a text or a value looks like a secret, and what is left of it?

By shape: keys, tokens and private keys whose form their issuer documents, logins in URLs,
signatures of signed URLs, headers that authenticate. By key: whatever stands under a name like
``password`` or ``api_key``. ``SHAPES``, ``KEY_WORDS`` and what stands beside them are the whole of
it. A text is looked through once for each of the two, in time that grows with its length alone.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HIDDEN: Final = "[redacted]"


class Shape(NamedTuple):
    """A form that secrets of one issuer have."""

    issuer: str
    pattern: str
    """Of the whole secret; nothing alphanumeric stands before it."""
    source: str
    """Where the form is documented."""


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
"""Shapes of tokens that stand alone in a text."""

_PEM: Final = (
    r"-----BEGIN[ A-Z0-9]{0,40}PRIVATE\ KEY(?:\ BLOCK)?-----"
    r"(?:.*?-----END[ A-Z0-9]{0,40}PRIVATE\ KEY(?:\ BLOCK)?-----|.*)"
)
"""RFC 7468; of a key that was cut, everything to the end of the text."""
_LOGIN: Final = r"(?<=://)[^\s/@]+(?=@)"
"""RFC 3986, user information of a URL."""
_BEARER: Final = r"(?<=bearer\ )(?=\S*\d)[A-Za-z0-9._~+/=-]{6,}"
"""RFC 6750, wherever it stands; the digit tells it from a sentence about bearers."""

KEY_WORDS: Final = frozenset({
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "credential",
    "credentials", "token", "auth", "authtoken", "authorization", "cookie", "cookies", "dsn", "jwt",
    "sessionid", "phpsessid", "csrftoken", "apikey", "accesskey", "secretkey", "privatekey",
    "accountkey", "sharedkey", "signingkey", "authkey", "sshkey", "api key", "access key",
    "secret key", "private key", "account key", "shared key", "signing key", "encryption key",
    "auth key", "master key", "ssh key", "connection string",
})  # fmt: skip
"""A name that ends with one of these, in any writing (``api_key``, ``apiKey``, ``API-KEY``), has a
secret as its value. After the keys that Sentry's SDK hides (``sentry_sdk.scrubber``)."""
ENDINGS: Final = ("password", "passwd", "passphrase", "pwd")
"""Hidden also where nothing divides them from what is before: ``PGPASSWORD``, ``MYSQL_PWD``."""
URL_PARAMETERS: Final = frozenset({
    "x-amz-signature", "x-amz-credential", "x-amz-security-token", "x-goog-signature",
    "x-goog-credential", "awsaccesskeyid", "googleaccessid", "signature", "sig",
})  # fmt: skip
"""Of signed URLs: Amazon's and Google's signatures V2 and V4, Azure's shared access signatures."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_TO_LINE_END: Final = ("cookie", "cookies", "authorization")
"""Headers whose value has blanks."""
_MOST_NAME: Final = 128


class Redactor:
    """Hides secrets and counts what it hid; there is one for all that a process records itself."""

    def __init__(self) -> None:
        self.hidden = 0
        """Values hidden of which nobody has been told."""
        self._tell: Callable[[int], None] | None = None

    def count_with(self, tell: Callable[[int], None] | None) -> None:
        """From now on ``tell`` gets the number of values hidden, those from before first."""
        self._tell = tell
        self._count(0)

    def text(self, text: str) -> str:
        """``text`` with ``[redacted]`` for each secret in it; names that announce one stay."""
        text, tokens = _tokens().subn(HIDDEN, text)
        pieces: list[str] = []
        end = 0
        for name in _names().finditer(text):
            if name.end() < end or not _announces(text, name):
                continue
            is_line = _name_of(name).lower().endswith(_TO_LINE_END)
            value = _values()[is_line].match(text, name.end())
            if value is not None and value[0] != HIDDEN:
                pieces += (text[end : value.start()], HIDDEN)
                end = value.end()
        self._count(tokens + len(pieces) // 2)
        return "".join((*pieces, text[end:])) if pieces else text

    def value(self, key: str, value: Any) -> Any:
        """``value`` as it may be stored under ``key``; lists and mappings are looked through."""
        if isinstance(value, str):
            return self._hide(value) if is_secret_key(key) else self.text(value)
        if isinstance(value, dict):
            return self.values(value, key if is_secret_key(key) else "")
        if isinstance(value, list):
            return [self.value(key, item) for item in value]
        # A number under "token" is one of a vocabulary, under "password" somebody's.
        is_hidden = type(value) is int and key.lower().endswith(ENDINGS)
        return self._hide(value) if is_hidden else value

    def values(self, values: Mapping[str, Any], around: str = "") -> dict[str, Any]:
        """Each of ``values``; all are hidden where ``around`` is the name of a secret."""
        return {key: self.value(around or key, value) for key, value in values.items()}

    def _hide(self, value: Any) -> Any:
        if value in ("", HIDDEN):
            return value
        self._count(1)
        return HIDDEN

    def _count(self, count: int) -> None:
        self.hidden += count
        if self._tell is not None and self.hidden:
            self._tell(self.hidden)
            self.hidden = 0


IN_PROCESS: Final = Redactor()
"""Of the process that records."""


def is_secret_key(name: str) -> bool:
    """Whether what stands under ``name`` is a secret, by its last words."""
    words = [word.lower() for word in _WORD.findall(name[-_MOST_NAME:])]
    return bool(words) and (
        words[-1] in KEY_WORDS or " ".join(words[-2:]) in KEY_WORDS or words[-1].endswith(ENDINGS)
    )


def _announces(text: str, name: re.Match[str]) -> bool:
    is_parameter = text[name.start() - 1 : name.start()] in ("?", "&")
    said = _name_of(name)
    return (is_parameter and said.lower() in URL_PARAMETERS) or is_secret_key(said)


def _name_of(match: re.Match[str]) -> str:
    return match["name"] or match["flag"] or ""


# Compiled when a text is looked through for the first time: most processes never do.
@cache
def _tokens() -> re.Pattern[str]:
    shapes = "|".join(shape.pattern for shape in SHAPES)
    text = rf"(?<![A-Za-z0-9])(?:{shapes})|{_PEM}|{_LOGIN}|(?i:{_BEARER})"
    return re.compile(text, re.DOTALL)


@cache
def _names() -> re.Pattern[str]:
    """``name=``, ``name: ``, ``"name": "``, ``--name ``; read once each."""
    flag = r"--(?P<flag>[A-Za-z][\w-]*+)[ \t]++(?!-)"
    named = r"(?P<name>[\w.-]++)[\"']?+[ \t]*+[=:]>?[ \t]*+"
    return re.compile(rf"(?<![\w.-])(?:{flag}|{named})")


@cache
def _values() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What follows a name: a quoted text, or to a blank; or to the end of the line."""
    # As in a shell, what stands behind the closing quote with no blank between belongs to it.
    quoted = r"""(?:b?"(?:[^"\\]|\\.)*+"|b?'(?:[^'\\]|\\.)*+')[^\s,;&)}\]]*+"""
    return (
        re.compile(
            rf"{quoted}|(?i:bearer|basic|digest|token)[ \t]+\S+|(?:\[redacted\]|[^\s,;&)}}\]])+",
            re.DOTALL,
        ),
        re.compile(rf"{quoted}|[^\r\n]+", re.DOTALL),
    )
