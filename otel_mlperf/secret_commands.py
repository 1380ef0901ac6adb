"""Patterns of command lines that contain a password at a known place.

A command line is a text, or a list as Python prints it. Each pattern has a group ``value``.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_SEPARATOR: Final = r"(?:[^\S\n]|[\"',])+"
"""Between two items of a command line, or of a list as Python prints it."""
_ITEM: Final = r"[^\s\"',]+"
_SPAN: Final = r"[^\n;|&]{0,200}?[\s\"',]"
"""Bounded: otherwise the time would grow with the square of a text's length."""
_BEHIND_FLAG: Final = r"(?P<value>(?!\[redacted\])[^\s\"',;)\]]+)"
_COMMANDS: Final = (
    # MySQL's clients and 7z expect the value directly behind the flag.
    rf"\b(?:mysql|mariadb|mycli|7z)[\w-]*\b{_SPAN}-p(?=[^\s\"',-])",
    # They interpret a word behind it as a database; many users type a password. Lower case stays.
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
"""Commands with a one-letter flag for a password, up to its value."""
_FLAG: Final = re.compile(r"[\s\"',]-|-p")
"""In every text in which one of ``_COMMANDS`` finds something."""
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
"""Commands with a secret at a place of its own, up to it."""
_AT_PLACE: Final = re.compile(
    "alias|config|sqlplus|sqlldr|sqlcl|[ei][xm]pdp|authtoken|jdbc:oracle|(?i:identified|password)"
)
"""In every text in which one of ``_PLACES`` or ``_ORACLE`` finds something."""
_ORACLE: Final = (
    r"jdbc:oracle:\w{1,16}:[^\s/@\"']{1,64}/(?P<value>(?!\[redacted\])[^\s\"']{1,128})(?=@)"
)
"""Oracle's URLs have a login without ``//`` before it."""


def command_patterns(text: str) -> list[re.Pattern[str]]:
    """Return the patterns that may find something in a text."""
    with_flags = [] if _FLAG.search(text) is None else _commands()
    return with_flags if _AT_PLACE.search(text) is None else with_flags + _places()


# Compiled when a text is searched for the first time: most processes never do.
@cache
def _commands() -> list[re.Pattern[str]]:
    return [re.compile(command + _BEHIND_FLAG) for command in _COMMANDS]


@cache
def _places() -> list[re.Pattern[str]]:
    return [*(re.compile(place + _BEHIND_FLAG) for place in _PLACES), re.compile(_ORACLE)]
