// The files of the pages are modules by their pages' word; Node goes by the name alone.
import { register } from "node:module";

const AS_MODULES = `export const load = (url, context, next) =>
  next(url, url.includes("/limelight/http/ui/") ? { ...context, format: "module" } : context);`;
register(`data:text/javascript,${encodeURIComponent(AS_MODULES)}`);
