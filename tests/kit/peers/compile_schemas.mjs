// Compiles schemas as the official TypeScript SDK compiles the `outputSchema` of each tool it lists.
//
// Reads an array of schemas from stdin. Writes, for each, the error of the compiler, or an empty text.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.env.CARPOOL_PEERS + "/");
const { AjvJsonSchemaValidator } = require("@modelcontextprotocol/sdk/validation/ajv");

function errorOf(schema) {
  try {
    new AjvJsonSchemaValidator().getValidator(schema);
    return "";
  } catch (error) {
    return String(error.message) || "error";
  }
}

console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(errorOf)));
