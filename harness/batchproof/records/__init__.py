"""What is written down: one frozen record, one reader and one writer for each kind of file.

decode        dataclasses <-> JSON; a value of the wrong kind is named by its path
file_kinds    a kind of file: schema name, version, reader and writer
provenance    command, date, machine, versions and commit of a result
trial_record  what one conformance test compared, and the failure that it found
journal       one line per finished piece of work; that of tests
table         the table engine x promise
verdict       one engine, all promises, its failures in groups
invariance    grades of engines along axes
triage        what is wrong with a running engine

Rooms above turn these records into pages; no other room knows a key of a file.
"""
