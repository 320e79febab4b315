#!/usr/bin/env python3
"""Write this folder for Godot 4: addons/relaax, the examples and the project.

    for_godot_4.py FOLDER      FOLDER: a new one

The scripts of this folder are for Godot 3. These tables have all that differs: names, calls and their arguments.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
RENAMED = {
    "Engine.iterations_per_second": "Engine.physics_ticks_per_second",
    "File.READ": "FileAccess.READ",
    "File.WRITE": "FileAccess.WRITE",
    "KinematicBody2D": "CharacterBody2D",
    "OS.get_ticks_msec": "Time.get_ticks_msec",
    "OS.get_ticks_usec": "Time.get_ticks_usec",
    "Physics2DShapeQueryParameters": "PhysicsShapeQueryParameters2D",
    "TYPE_RAW_ARRAY": "TYPE_PACKED_BYTE_ARRAY",
    "TYPE_REAL": "TYPE_FLOAT",
    "TYPE_REAL_ARRAY": "TYPE_PACKED_FLOAT32_ARRAY",
    "_idle": "_process",
    "_iteration": "_physics_process",
    "bytes2var": "bytes_to_var",
    "can_instance": "can_instantiate",
    "change_scene": "change_scene_to_file",
    "deg2rad": "deg_to_rad",
    "find_last": "rfind",
    "instance": "instantiate",
    "is_rel_path": "is_relative_path",
    "is_valid_integer": "is_valid_int",
    "onready": "@onready",
    "ord_at": "unicode_at",
    "process_priority": "process_physics_priority",
    "rand_range": "randf_range",
    "rect_position": "position",
    "rect_size": "size",
    "to_utf8": "to_utf8_buffer",
    "var2bytes": "var_to_bytes",
}
"""Whole words."""
REPLACED = [
    (r"\.get_len\(\)", ".get_length()"),
    (r"\.get_texture\(\)\.get_data\(\)", ".get_texture().get_image()"),
    (r"\n\t+image\.flip_y\(\).*", ""),
    (r"\bupdate\(\)", "queue_redraw()"),
    (r'OS\.get_name\(\) == "Server"', 'DisplayServer.get_name() == "headless"'),
    (r"godot3-server", "godot --headless"),
    (r"PoolStringArray\((.+?)\)\.join\((\"[^\"]*\")\)", r"\2.join(PoolStringArray(\1))"),
    (r"\bPoolRealArray", "PackedFloat32Array"),
    (r"\bPool(Byte|String)Array", r"Packed\1Array"),
    # The status of a connection changes only with `poll`.
    (r"\b(_tcp|pipe)\.get_status\(\)", r"_polled(\1).get_status()"),
    # Files: null instead of an error code.
    (
        r"var (\w+) = File\.new\(\)\n(\t+)if \1\.open\((.+), File\.READ\) != OK:",
        r"var \1 = FileAccess.open(\3, File.READ)\n\2if \1 == null:",
    ),
    (r"var (\w+) = File\.new\(\)\n\t+\1\.open\((.+), (File\.\w+)\)", r"var \1 = FileAccess.open(\2, \3)"),
    (
        r"var (\w+) = Directory\.new\(\)\n(\t+)if \1\.open\((.+)\) != OK:",
        r"var \1 = DirAccess.open(\3)\n\2if \1 == null:",
    ),
    (r"list_dir_begin\(true\)", "list_dir_begin()"),
    # Properties of the editor.
    (r"export\((?:int|float), LAYERS_2D_PHYSICS\) var", "@export_flags_2d_physics var"),
    (r"export\((?:int|float), ([^)]*)\) var", r"@export_range(\1) var"),
    (r"export\(String, FILE, (.*)\) var", r"@export_file(\1) var"),
    (r"export\(String, (.*)\) var", r"@export_enum(\1) var"),
    (r"export\(Array, String\) var (\w+) = \[\]", r"@export var \1 = PackedStringArray()"),
    (r"export\((NodePath|PackedScene)\) var (\w+)", r"@export var \2: \1"),
    (r"export\(\w+\) var", "@export var"),
    # Physics: rays and shapes as queries, bodies as ids, the speed as a property.
    (
        r"var hit = space\.intersect_ray\((.+), ignored, collision_mask, true, true\)",
        r"var query = PhysicsRayQueryParameters2D.create(\1, collision_mask, ignored)\n"
        r"\t\tquery.collide_with_areas = true\n\t\tvar hit = space.intersect_ray(query)",
    ),
    (r"\[get_node\(excluded\)\]", "[get_node(excluded).get_rid()]"),
    (r"query\.collision_layer", "query.collision_mask"),
    (r"shape\.extents = (.+?)(  #.*)?\n", r"shape.size = 2 * \1\2\n"),
    (r"(\t+)body\.move_and_slide\((.+)\)", r"\1body.velocity = \2\n\1body.move_and_slide()"),
    # Cameras: the zoom enlarges, and the only camera is the current one.
    (r"camera\.zoom = Vector2\.ONE \* (.+) / 600", r"camera.zoom = Vector2.ONE * 600 / (\1)"),
    (r"\n\t+camera\.current = true", ""),
]
"""Regular expressions, applied before the words."""
SCENE = [
    (r"format=2\]", "format=3]"),
    (r"extents = Vector2\( (\d+), (\d+) \)", lambda found: f"size = Vector2({2 * int(found[1])}, {2 * int(found[2])})"),
    (r"groups = \[ (.*) \]", r"groups = PackedStringArray(\1)"),
    (r" id=(\d+)\]", r' id="\1"]'),
    (r"(\w+Resource)\( (\d+) \)", r'\1("\2")'),
    (r'type="KinematicBody2D"(.*)\]', r'type="CharacterBody2D"\1]\nmotion_mode = 1'),
]
PROJECT = [
    (r"config_version=4", "config_version=5"),
    (r"common/physics_fps", "common/physics_ticks_per_second"),
    (r'quality/driver/driver_name="GLES2"', 'renderer/rendering_method="gl_compatibility"'),
]
POLLED = """

func _polled(peer):
	peer.poll()
	return peer
"""


def sliced(text: str) -> str:
    """Return the text with slices whose end is excluded, as in Godot 4: a.subarray(0, n - 1) is a.slice(0, n)."""
    done, rest = "", text
    while found := re.search(r"\.(?:subarray|slice)\(", rest):
        end = depth = 0
        commas = []
        for at in range(found.end(), len(rest)):
            depth += (rest[at] in "([") - (rest[at] in ")]")
            if rest[at] == "," and depth == 0:
                commas.append(at)
            if depth < 0:
                end = at
                break
        first, last = rest[found.end() : commas[0]], rest[commas[0] + 2 : end]
        last = last.removesuffix(" - 1") if last.endswith(" - 1") else f"{last} + 1"
        done += rest[: found.start()] + f".slice({sliced(first)}, {sliced(last)})"
        rest = rest[end + 1 :]
    return done + rest


def replaced(text: str, rules: Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]) -> str:
    """Return the text after all rules."""
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    return text


def script(text: str) -> str:
    """Return a script of Godot 3 for Godot 4."""
    text = sliced(replaced(text, REPLACED))
    for old, new in RENAMED.items():
        text = re.sub(rf"(?<![\w@]){re.escape(old)}\b", new, text)
    return text + POLLED if "_polled(" in text else text


def write(folder: Path) -> list[Path]:
    """Write all files for Godot 4 below a folder; return their paths. Raises OSError."""
    written = []
    for source in sorted(HERE.rglob("*")):
        convert = {
            ".gd": script,
            ".tscn": lambda text: replaced(text, SCENE),
            ".godot": lambda text: replaced(text, PROJECT),
        }
        if source.suffix in convert:
            target = folder / source.relative_to(HERE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(convert[source.suffix](source.read_text("utf-8")), "utf-8")
            written.append(target)
    return written


def main() -> None:
    """Write the folder that the command line names."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    folder = Path(sys.argv[1])
    try:
        if folder.exists() and any(folder.iterdir()):
            raise SystemExit(f"{folder} is not empty: give a new folder, and copy addons/relaax from there")
        count = len(write(folder))
    except OSError as error:
        raise SystemExit(f"cannot write {folder}: {error.strerror}") from None
    print(f"{count} files for Godot 4 in {folder}; copy its addons/relaax into your project")


if __name__ == "__main__":
    main()
