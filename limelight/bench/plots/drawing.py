"""A picture: shapes and text in pixels from the top left corner, written as SVG."""

from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from limelight.errors import ConfigError

INK, FAINT, PALE, GRID, PAPER = "#1f2933", "#66727f", "#c5cdd5", "#e4e8ec", "#ffffff"
BLUE, AMBER, RED = "#2f6fb3", "#f2b34c", "#d1495b"
SERIES = ("#2f6fb3", "#f2b34c", "#3f9c7f", "#d1495b", "#8663a5", "#7b8794", "#57b8d0", "#b5793a", "#a3b84a", "#c97fa8")
FONT = "Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
PNG_SCALE = 2.0
SUFFIXES = (".svg", ".png")


class Drawing:
    """Collects elements.

    Attributes:
        width, height: in pixels; `height` may grow until the picture is written.
    """

    def __init__(self, width: float) -> None:
        self.width = width
        self.height = 0.0
        self._elements: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, fill: str, *, radius: float = 0.0) -> None:
        """A filled rectangle; at least half a pixel wide, so that it can be seen."""
        size = f'width="{max(width, 0.5):.2f}" height="{height:.2f}"'
        self._elements.append(f'<rect x="{x:.2f}" y="{y:.2f}" {size} rx="{radius:g}" fill="{fill}"/>')

    def line(
        self, x1: float, y1: float, x2: float, y2: float, color: str, *, width: float = 1.0, dash: str = ""
    ) -> None:
        """A straight line; `dash` as SVG's `stroke-dasharray`."""
        ends = f'x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"'
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self._elements.append(f'<line {ends} stroke="{color}" stroke-width="{width:g}"{dashed}/>')

    def area(self, points: Sequence[tuple[float, float]], bottom: float, color: str) -> None:
        """A line through `points`, and its colour thinly down to `bottom`."""
        path = " L".join(f"{x:.2f} {y:.2f}" for x, y in points)
        closed = f"M{points[0][0]:.2f} {bottom:.2f} L{path} L{points[-1][0]:.2f} {bottom:.2f} Z"
        self._elements.append(f'<path d="{closed}" fill="{color}" fill-opacity="0.18"/>')
        self._elements.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="1.8"/>')

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12.0,
        color: str = INK,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """One line of text; `y` is its base line, `anchor` is start, middle or end."""
        weight = ' font-weight="600"' if bold else ""
        self._elements.append(
            f'<text x="{x:.2f}" y="{y:.2f}" font-size="{size:g}" fill="{color}" text-anchor="{anchor}"{weight}>'
            f"{escape(text)}</text>"
        )

    def svg(self) -> str:
        """The whole file."""
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family={quoteattr(FONT)}>',
                f'<rect width="100%" height="100%" fill="{PAPER}"/>',
                *self._elements,
                "</svg>\n",
            ]
        )


def check_plot(path: Path) -> None:
    """Looks before a run whether its picture can be written.

    Raises:
        ConfigError: the name has no suffix that we write, the folder is not there, or a PNG needs a package.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot {path}: the name must end in .svg or .png")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.absolute().parent}")
    if path.suffix.lower() == ".png":
        _renderer()


def write_plot(drawing: Drawing, path: Path) -> None:
    """Writes SVG, or PNG where the name ends so.

    Raises:
        ConfigError: as `check_plot`.
        OSError: the file cannot be written.
    """
    check_plot(path)
    if path.suffix.lower() == ".svg":
        path.write_text(drawing.svg(), encoding="utf-8")
    else:
        path.write_bytes(bytes(_renderer()(svg_string=drawing.svg(), zoom=PNG_SCALE)))


def _renderer() -> Callable[..., Sequence[int]]:
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise ConfigError(
            "--plot: a .png needs the package resvg-py: pip install 'limelight[plot]'; a .svg needs nothing"
        ) from None
    renderer: Callable[..., Sequence[int]] = svg_to_bytes
    return renderer
