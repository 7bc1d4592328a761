"""What every text passes at the border."""

# The names that files of conversations give the three roles.
ROLES = {"system": "system", **dict.fromkeys(("user", "human"), "user"),
         **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "model"), "assistant")}


def clean(text):
    """The text with lone surrogates, which no file and no encoding can hold, replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
