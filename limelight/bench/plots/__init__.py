"""Pictures of a run as SVG, drawn by us; a PNG is made of one by the package resvg-py."""
