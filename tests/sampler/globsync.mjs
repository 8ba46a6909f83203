// The conformance suite imports fs.globSync, which Node has from 22 on; of the commands used here none calls it.
import { register } from "node:module";

const asModule = (source) => "data:text/javascript," + encodeURIComponent(source);
const fs = asModule(`import fs from "node:fs"; export * from "node:fs"; export default fs; export const globSync = undefined;`);
register(asModule(`export const resolve = (name, context, next) =>
  name === "fs" ? { url: ${JSON.stringify(fs)}, shortCircuit: true } : next(name, context);`));
