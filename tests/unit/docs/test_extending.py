"""Each recipe of ``docs/EXTENDING.md`` works as written on the page."""

from __future__ import annotations

import pytest
import recipes

RECIPES = recipes.recipes(recipes.PAGE.read_text())
MADE_UP = """\
## A greeting

```python
# file: acme_greeting.py
def greet():
    return "hello"
```

```toml
[project.entry-points."acme.greetings"]
plain = "acme_greeting:greet"
```

```python
# check
from importlib.metadata import entry_points

(found,) = entry_points(group="acme.greetings")
print(found.load()())
```

## Words alone

Nothing to be done.
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_does_what_it_says(title, tmp_path):
    """Its files and entry points installed, each of its checks ends well."""
    assert list(recipes.carry_out(RECIPES[title], tmp_path))


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_has_a_check(title):
    """Code that nothing runs is not true for long."""
    assert RECIPES[title].checks


def test_files_entry_points_and_checks_are_taken_from_the_page(tmp_path):
    """As an installer would lay them down, and a program find them."""
    found = recipes.recipes(MADE_UP)

    assert list(found) == ["A greeting"]
    assert list(recipes.carry_out(found["A greeting"], tmp_path)) == ["hello\n"]


def test_a_check_that_fails_says_why(tmp_path):
    """With what it wrote."""
    broken = recipes.recipes(MADE_UP.replace('"hello"', "1 / 0"))["A greeting"]

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        list(recipes.carry_out(broken, tmp_path))
