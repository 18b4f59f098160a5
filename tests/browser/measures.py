"""What is measured on a page: frames, processor time, contrasts, texts."""

FRAMES = """(milliseconds) => new Promise((resume) => {
    const frames = [];
    const start = performance.now();
    let last = start;
    const frame = (now) => {
        frames.push(now - last);
        last = now;
        if (now - start < milliseconds) requestAnimationFrame(frame);
        else resume(frames);
    };
    requestAnimationFrame(frame);
})"""


async def busy_seconds(session):
    metrics = (await session.send("Performance.getMetrics"))["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")


CONTRASTS = """(selectors) => {
    const shown = {};
    const ground = (node) => {
        for (; node !== null; node = node.parentElement) {
            const color = getComputedStyle(node).backgroundColor;
            if (color !== "rgba(0, 0, 0, 0)" && !color.includes("/")) return color;
        }
    };
    for (const selector of selectors) {
        const node = document.querySelector(selector);
        if (node !== null) shown[selector] = [getComputedStyle(node).color, ground(node)];
    }
    return shown;
}"""


def luminance(color):
    """Of `rgb(...)`, relative, as WCAG 2 defines it."""
    channels = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def placeholders(text):
    return sorted(part.partition("}")[0] for part in text.split("{")[1:])
