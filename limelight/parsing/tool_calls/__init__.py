"""Tool calls in the text of a model: one file per format, each a generator that reads characters as they come.

A generator sees one stream of characters, so its parts cannot depend on how the text was cut. Rules of all formats:
white space beside a call belongs to it; what turns out to be no call is text, character by character; once a name has
been given, a call is never taken back, and breaks off where its text does.
"""
