def parameters(words):
    """Parameters that a test writes in words, such as ``lam=0.5, start=cold``, as data."""

    def value(text):
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                pass
        return text

    parts = (part.split("=") for part in words.split(", ")) if words else ()
    return {name: value(text) for name, text in parts}
