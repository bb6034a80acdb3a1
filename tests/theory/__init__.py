def sentence(diagnosis, word):
    """The first of the reasons with this word: those that cost most come first."""
    return next(text for text in diagnosis.advice if word in text)
