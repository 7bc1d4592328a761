"""What every text passes at the border."""


def clean(text):
    """The text with lone surrogates, which no file and no encoding can hold, replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
