"""The life of one sandbox on the host side: launch, channel, commands, files, refused calls, end.

It knows plans and records but no policy language, and decides nothing about what is allowed.
"""
