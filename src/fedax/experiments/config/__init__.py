"""A configuration, from TOML to the objects that run: everything is checked before anything long begins.

| module | what |
|---|---|
| sections | what a configuration looks like: names, types and ranges of its settings |
| edit | its tables: read from a file, changed setting by setting |
| codec | objects from tables, and tables from objects |
| data | the section ``data``: clients and their parts |
| experiment | all of it together, checked and made |
"""
