"""Redaction of secrets in texts and values.

Secrets are detected in two ways:

- By shape: keys, tokens and private keys of a documented form, logins in URLs, signatures of signed
  URLs, authentication headers.
- By key: any value under a name like ``password`` or ``api_key``.

``secret_patterns``, and ``KEY_WORDS`` with the constants below it, are the complete list. A text is
searched once in each way, in a time that is linear in the text's length.
"""

from __future__ import annotations

import re
from base64 import b64decode
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.names import BASE64
from otel_mlperf.secret_patterns import SHAPES, command_patterns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

HIDDEN: Final = "[redacted]"

_PEM: Final = (
    r"-----BEGIN[ A-Z0-9]{0,40}PRIVATE\ KEY(?:\ BLOCK)?-----"
    r"(?:.*?-----END[ A-Z0-9]{0,40}PRIVATE\ KEY(?:\ BLOCK)?-----|.*)"
)
"""Private key of RFC 7468. If its end is missing, everything up to the end of the text matches."""
_LOGIN: Final = (
    r"(?<=://)(?!\[redacted\]@)[^\s/?\#\"'<>]+(?=@)"
    # An unquoted password may contain a slash.
    r"|(?<=://)(?!\[redacted\]@)[^\s/?\#@:]{0,64}:(?!\d*[/?\#])[^\s\"'<>@]{1,128}(?=@)"
)
"""User information of a URL (RFC 3986), up to the last ``@`` of the authority."""
_BARE_LOGIN: Final = (
    r"(?<![\w/@.-])(?!(?i:mailto|e-?mail|from|to|b?cc|author|contact|sip|acct|jdbc|oracle):)"
    r"[\w.+-]{1,64}:(?!//)[^\s\"'<>,@]{1,64}(?:(?:@[^\s\"'<>,@/]{1,64})+(?=@\w)"
    r"|(?=@(?:localhost\b|[\w-]+(?:\.[\w-]+)*(?:\.[A-Za-z]{2,}\b|:\d|/)|\d+(?:\.\d+){3})))"
)
"""Login without a URL scheme, ``user:password@host``, but no image reference or e-mail address."""
_BEARER: Final = (
    r"(?<=bearer\ )(?=\S*\d)[A-Za-z0-9._~+/=-]{6,}"
    r"|(?<=basic\ )(?=\S*(?:\d|=))(?:[A-Za-z0-9+/]{4}){2,}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
    r"(?![\w+/=])"
)
"""Bearer and basic authentication (RFC 6750, RFC 7617); a digit excludes ordinary sentences."""

KEY_WORDS: Final = frozenset({
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "credential",
    "credentials", "token", "auth", "authtoken", "authorization", "cookie", "cookies", "dsn", "jwt",
    "sessionid", "phpsessid", "csrftoken", "apikey", "accesskey", "secretkey", "privatekey",
    "accountkey", "sharedkey", "signingkey", "authkey", "sshkey", "api key", "access key",
    "secret key", "private key", "account key", "shared key", "signing key", "encryption key",
    "auth key", "master key", "ssh key", "connection string", "passwort", "passwords", "apikeys",
    "api keys", "access keys", "secret keys", "private keys", "storage key", "hmac key",
    "license key", "subscription key", "shared access key", "wandb key", "honeycomb team",
    "db pass", "user pass", "admin pass", "root pass", "smtp pass", "mail pass", "ftp pass",
    "redis pass", "login pass", "http pass", "proxy pass", "secret str", "secret bytes",
    "storepass", "keypass",
})  # fmt: skip
"""Last words of names with a secret value, in any notation (``api_key``, ``apiKey``, ``API-KEY``).
The list is based on the keys that Sentry's SDK hides (``sentry_sdk.scrubber``)."""
ENDINGS: Final = ("password", "passwords", "passwd", "passphrase", "pwd")
"""Endings of secret names that need no separator before them: ``PGPASSWORD``, ``MYSQL_PWD``."""
URL_PARAMETERS: Final = frozenset({
    "x-amz-signature", "x-amz-credential", "x-amz-security-token", "x-goog-signature",
    "x-goog-credential", "awsaccesskeyid", "googleaccessid", "signature", "sig", "key",
})  # fmt: skip
"""Parameters of signed URLs: signatures V2 and V4 of Amazon and Google, and Azure's shared access
signatures."""

_SUFFIXES: Final = frozenset({
    "base", "base64", "b64", "content", "data", "hash", "plain", "raw", "string", "value",
})  # fmt: skip
"""Words that may follow a secret's name without making the value harmless: ``secret_key_base``."""

_BLANK: Final = "\x1f"
"""Separator of a list's items, which are joined to be searched as a command line."""

_BETWEEN: Final = (
    r"(?![A-Za-z0-9_])[ \t]*+(?:(?:(?:is|was|for|with)\b|->|<-|[:=(|>\"'\[])[ \t]*+){0,4}+"
)
_MIXED: Final = (
    r"(?!redacted\])(?=[^\s\"',;)\]}<>]{0,128}?\d)(?=[^\s\"',;)\]}<>]{0,128}?[A-Za-z])"
    r"[^\s\"',;)\]}<>]{6,}"
)
_HEX: Final = r"[0-9a-fA-F]{32,}(?![\w-])"
_RANDOM: Final = r"(?=[A-Za-z]*\d)(?=[A-Z\d]*[a-z])(?=[a-z\d]*[A-Z])[A-Za-z0-9]{20,}(?![\w.-])"
_PROSE: Final = (
    rf"(?<![a-z])(?:pass(?:words?|wd|phrase|code|wort)?|pw|pwd){_BETWEEN}(?P<value>{_MIXED})",
    r"(?<![a-z])pass(?:word|wd|phrase|code|wort)(?![\w.])[ \t]+(?:(?:is|was)[ \t]+)?[\"']"
    r"(?P<value>(?!\[redacted\])[^\s\"']{4,128})(?=[\"'])",
    r"(?<![a-z])(?:(?:api|access|secret|private|auth|account|wandb)[ _-]?key|token|secret|login)"
    rf"{_BETWEEN}(?P<value>{_HEX}|(?-i:{_RANDOM}))",
    # A PIN, or another password of digits; pins of chips have fewer digits.
    r"(?:(?<![a-z])(?:pin|otp|puk)|(?-i:(?<=[a-z])(?:Pin|Otp)))(?:[ _-]?(?:code|number))?"
    r"(?:[\"']?[ \t]*[:=][ \t]*[\"']?|[ \t]+(?:is|was)[ \t]+|[\"'],[ \t]*[\"']?|(?<=--pin)[ \t]+)"
    r"(?P<value>\d{4,12})(?![\w.])",
    r"(?<![a-z])(?:cvv2?|cvc)[\"']?[ \t]*[:=][ \t]*[\"']?(?P<value>\d{3,4})(?![\w.])",
    rf"(?:wandb|login|api)\b[^\n]{{0,40}}?(?<![a-z])key{_BETWEEN}(?P<value>{_HEX})",
    # Key of Weights & Biases: it has the form of a commit hash, but the name ``key``.
    r"(?<![\w.-])(?<!cache\ )(?<!hash\ )(?<!index\ )key[\"']?[ \t]*[:=][ \t]*[\"']?"
    r"(?P<value>[0-9a-f]{40})(?![\w-])",
)
"""Secrets after their names, without assignment; only values that are not ordinary words match."""
_HINT: Final = re.compile("pass|pwd?|token|secret|login|key|pin|otp|puk|cv[vc]", re.IGNORECASE)
"""Fast pre-check that matches every text in which a pattern of ``_PROSE`` matches."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_TO_LINE_END: Final = ("cookie", "cookies", "authorization")
"""Headers whose value may contain blanks, and extends to the end of the line."""
_MAX_NAME: Final = 128
_MAX_PASSES: Final = 8


class Redactor:
    """Redactor that hides and counts secrets in texts and values."""

    def __init__(self) -> None:
        self.hidden = 0
        """Number of hidden values that have not been reported yet."""
        self._report: Callable[[int], None] | None = None

    def count_with(self, tell: Callable[[int], None] | None) -> None:
        """Report the number of hidden values to ``tell``, including those hidden earlier.

        If ``tell`` is None, values are only counted.
        """
        self._report = tell
        self._count(0)

    def text(self, text: str) -> str:
        """Replace each secret in ``text`` with ``[redacted]``; names of secrets are unchanged."""
        count = 0
        # Repeated after a replacement, which may uncover a name and its value that it separated.
        for _ in range(_MAX_PASSES):
            before = text
            text, found = _hidden_in(text)
            if text == before:
                break
            count = count or found
        self._count(count)
        return text

    def value(self, key: str, value: Any) -> Any:
        """Redact a ``value`` that will be stored under ``key``; lists and mappings are searched."""
        if isinstance(value, str):
            is_secret = is_secret_key(key) or _is_named_in_prose(key, value)
            return self._hide(value) if is_secret else self.text(value)
        if isinstance(value, dict) and value.keys() == {BASE64}:
            text = b64decode(value[BASE64]).decode("latin-1")
            shown = self.value(key, text)
            return value if shown == text else shown
        if isinstance(value, dict):
            return self.values(value, key if is_secret_key(key) else "")
        if isinstance(value, list):
            value = self._command(value)
            names = ("", *(_flag(item, is_pair=len(value) == 2) for item in value))
            return [self.value(name or key, item) for name, item in zip(names, value, strict=False)]
        # A number under "token" is probably a token id of a vocabulary, but not under "password".
        is_hidden = type(value) is int and (
            key.lower().endswith(ENDINGS) or _is_named_in_prose(key, str(value))
        )
        return self._hide(value) if is_hidden else value

    def _command(self, items: list[Any]) -> list[Any]:
        """Redact secrets in ``items`` as in a command line, where a secret may follow a flag."""
        if not all(isinstance(item, str) for item in items):
            return items
        text, count = _commands_hidden(_BLANK.join(items))
        hidden = text.split(_BLANK)
        if not count or len(hidden) != len(items):
            return items
        self._count(count)
        return hidden

    def values(self, values: Mapping[str, Any], around: str = "") -> dict[str, Any]:
        """Redact the values of a mapping; all are hidden if ``around`` is the name of a secret."""
        named = values.get("name")
        if isinstance(named, str) and is_secret_key(named) and "value" in values:
            values = {**values, "value": self.value(named, values["value"])}
        return {key: self.value(around or key, value) for key, value in values.items()}

    def _hide(self, value: Any) -> Any:
        if value in ("", HIDDEN):
            return value
        self._count(1)
        return HIDDEN

    def _count(self, count: int) -> None:
        self.hidden += count
        if self.hidden and self._report is not None:
            self._report(self.hidden)
            self.hidden = 0


IN_PROCESS: Final = Redactor()
"""Redactor for everything that this process records."""


def _hidden_in(text: str) -> tuple[str, int]:
    """Redact ``text`` in one pass; return the result and the number of secrets found."""
    text, count = _tokens().subn(HIDDEN, text)
    if "@" in text:
        text, found = _logins().subn(HIDDEN, text)
        count += found
    text, found = _commands_hidden(text)
    count += found
    text, found = _assigned_hidden(text)
    count += found
    if _HINT.search(text) is not None:
        text, found = _values_hidden(text, _prose())
        count += found
    return text, count


def _commands_hidden(text: str) -> tuple[str, int]:
    return _values_hidden(text, command_patterns(text))


def _values_hidden(text: str, patterns: Iterable[re.Pattern[str]]) -> tuple[str, int]:
    count = 0
    for pattern in patterns:
        text, found = pattern.subn(_without_value, text)
        count += found
    return text, count


def _assigned_hidden(text: str) -> tuple[str, int]:
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
    return "".join((*pieces, text[end:])), len(pieces) // 2


@lru_cache(4096)
def is_secret_key(name: str) -> bool:
    """Return whether ``name`` is the name of a secret, which its last words determine."""
    words = [word.lower() for word in _WORD.findall(name[-_MAX_NAME:])]
    if _ends_like_secret(words):
        return True
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in _SUFFIXES):
        del words[-1]
        # A "token_string" is usually a text of a vocabulary's token.
        if _ends_like_secret(words) and words[-1] not in ("token", "auth"):
            return True
    return False


def _is_named_in_prose(key: str, value: str) -> bool:
    if _HINT.search(key) is None:
        return False
    text = f"{key}={value}"
    found = (pattern.search(text) for pattern in _prose())
    return any(match is not None and match["value"] == value for match in found)


def _flag(item: Any, *, is_pair: bool) -> str:
    """Return ``item`` if it names a secret that the next item of a list contains, else "".

    If ``is_pair`` is False, only an item that starts with ``-`` can be such a name.
    """
    is_name = isinstance(item, str) and (is_pair or item.startswith("-"))
    return item if is_name and is_secret_key(item) else ""


def _ends_like_secret(words: list[str]) -> bool:
    return bool(words) and (
        words[-1] in KEY_WORDS
        or " ".join(words[-2:]) in KEY_WORDS
        or " ".join(words[-3:]) in KEY_WORDS
        or words[-1].endswith(ENDINGS)
    )


def _announces(text: str, name: re.Match[str]) -> bool:
    is_parameter = text[name.start() - 1 : name.start()] in ("?", "&")
    announced = _name_of(name)
    return (is_parameter and announced.lower() in URL_PARAMETERS) or is_secret_key(announced)


def _name_of(match: re.Match[str]) -> str:
    return next((name for name in match.groups() if name), "")


def _without_value(match: re.Match[str]) -> str:
    start, end = (place - match.start() for place in match.span("value"))
    return match[0][:start] + HIDDEN + match[0][end:]


# Compiled at the first search, since most processes never search a text.
@cache
def _tokens() -> re.Pattern[str]:
    shapes = "|".join(shape.pattern for shape in SHAPES)
    bearer = rf"(?i:{_BEARER})"
    return re.compile(rf"(?<![A-Za-z0-9])(?:{shapes})|{_PEM}|{bearer}", re.DOTALL)


@cache
def _logins() -> re.Pattern[str]:
    return re.compile(rf"{_LOGIN}|{_BARE_LOGIN}")


@cache
def _prose() -> list[re.Pattern[str]]:
    return [re.compile(prose, re.IGNORECASE) for prose in _PROSE]


@cache
def _names() -> re.Pattern[str]:
    """Compile the pattern of a secret's name before its value, which never backtracks.

    It matches ``name=``, ``name: ``, ``"name": "``, ``("name", "`` and ``--name ``.
    """
    flag = r"--?(?P<flag>[A-Za-z][\w-]*+)[ \t]++(?![-=:|<>])"
    # Settings of shells and Dockerfiles. Text in lower case may be prose: then the value must not
    # be an ordinary word.
    setting = (
        r"(?:(?i:setx?|setenv)|ENV|ARG)(?:[ \t]++-\w++)*+[ \t]++"
        r"(?P<setting>[A-Z][A-Z\d_]*+(?![a-z])(?=[ \t]++(?![-=|<>]|(?i:for|to|is)\b))"
        rf"|[\w.-]++(?=[ \t]++{_MIXED}))[ \t]++"
    )
    field = r"(?:(?<=[:=])|(?<=[:=][ ]))(?P<field>[\w.-]++),[ \t]*+value[ \t]*+[=:][ \t]*+"
    first = r"(?:(?<=[(\[]['\"])|(?<=['\"](?=--)))(?P<first>[\w.-]++)['\"],[ \t]*+(?=b?['\"])"
    in_field = r"[\"'\s][\s,]*+[\"']?value[\"']?[ \t]*+[=:][ \t]*+"
    # Printed objects of Python and Rust; later passes hide further arguments.
    call = (
        r"\((?:\[redacted\],[ \t]*+){0,4}+(?=b?['\"])"
        r"|[({][ \t]*+_{0,2}(?:value|raw|inner|data|key|secret)_{0,2}[ \t]*+[=:]"
        r"(?![ \t]*+\d+[,)}\s])"
    )
    sign = rf"(?:(?:[?:]|\|\|)?={{1,3}}>?|<-|->|:|%3[AaDd]|{call})>?[ \t]*+"
    named = rf"(?P<name>[\w.-]++)(?:\\*+[\"']?+\]?[ \t]*+{sign}|{in_field}|>)"
    return re.compile(rf"(?<![\w.-])(?:{flag}|{first}|{setting}|{field}|{named})")


@cache
def _values() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Compile two patterns of values: one for general values, one up to the end of the line.

    A general value is a quoted text, a bracket, an indented block, or the text up to a blank or to
    the next assignment.
    """
    # As in a shell, text directly after the closing quote belongs to the value.
    quoted = (
        r"""(?:\\++"[^"\\]*+\\++"|b?\"""(?:[^\\]|\\.)*?\"""|b?\'\'\'(?:[^\\]|\\.)*?\'\'\'"""
        r"""|b?"(?:[^"\\]|\\.)*+"|b?'(?:[^'\\]|\\.)*+')[^\s,;&)}\]]*+"""
    )
    block = r"[|>][+-]?\d?[ \t]*\n(?:[ \t]+[^\n]*(?:\n|$))+|\n[ \t]+(?:-[ ])?[^\s:]+[ \t]*(?=\n|$)"
    bracket = r"[(\[{][^)\]}\n]{0,4096}+[)\]}]"
    is_next = r"[\s\"']*+(?:[\w.-]++[\"']?[ \t]*+[=:]|$)|\s"
    # A value that was hidden in an earlier pass ends at the same place.
    plain = (
        rf"\[redacted\](?:\[redacted\]|[^\s,;&)}}\]])*"
        rf"|(?:\[redacted\]|[^\s,;&)}}\]]|[,;&](?!{is_next})|[)}}\]](?=\w))+"
    )
    return (
        re.compile(
            # A tag or an anchor of YAML belongs to the value.
            rf"(?:(?:!\S*+|&\w++)[ \t]++)*+(?:{quoted}|{block}"
            r"|(?i:bearer|basic|digest|token)[ \t]+\S+"
            rf"|(?!\[redacted\]){bracket}[^\s,;&)}}\]]*+|{plain})",
            re.DOTALL,
        ),
        re.compile(rf"{quoted}|[^\r\n]+", re.DOTALL),
    )
