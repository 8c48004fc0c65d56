"""The files of models: which plugins need which, fetching them, and the store that they lie in.

Rules here: a file gets the name of its digest once all of its content is there and has been looked at, by one rename,
and before that never; there is no index, so that nothing can say otherwise than what lies there.
"""
