"""One engine before the whole suite, and the verdict on it as a page.

command   the person's side: which engines, where to, resume
session   pytest in processes of its own; an engine that takes its process along ends one test
journal   a pytest plugin: every finished test is a line of a file at once
verdict   lines of the journal -> promises held and broken, and what broke them
page      a verdict -> Markdown
"""
