"""The commands `relaax new algorithm` and `relaax new environment`, which write working templates.

Begin with command.py. The templates are in templates/.
"""
