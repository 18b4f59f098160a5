// Starts `limelight serve` on a free port for the tests, and ends it. LIMELIGHT names the program.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

export async function startServer(...options) {
  const program = process.env.LIMELIGHT ?? "../../.venv/bin/limelight";
  const child = spawn(program, ["serve", "--port", "0", ...options], { stdio: ["ignore", "pipe", "inherit"] });
  const ended = new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("exit", resolve);
  });
  const address = new Promise((resolve) => {
    createInterface({ input: child.stdout }).on("line", (line) => {
      const found = /open (http\S+)/.exec(line);
      if (found) resolve(found[1]);
    });
  });
  const early = ended.then((code) => {
    throw new Error(`${program} ended with ${code} before it listened`);
  });
  early.catch(() => {});
  return {
    address: await Promise.race([address, early]),
    async stop() {
      child.kill("SIGTERM");
      return ended;
    },
  };
}
