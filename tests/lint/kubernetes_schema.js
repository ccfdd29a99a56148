// SPDX-License-Identifier: Apache-2.0
// Turns rendered Kubernetes YAML on standard input into TypeScript constants of the types that kubernetes-types gives
// their apiVersion and kind, on standard output: tsc then refuses what the schema does not know.
//
// Usage: node kubernetes_schema.js < rendered.yaml > rendered.ts

const fs = require("fs");
const yaml = require("js-yaml");

const documents = yaml.loadAll(fs.readFileSync(0, "utf8")).filter(Boolean);
if (documents.length === 0) {
  console.error("error: nothing was rendered");
  process.exit(1);
}
documents.forEach((document, i) => {
  const { apiVersion, kind } = document;
  if (!/^([a-z]+(\.k8s\.io)?\/)?v[0-9a-z]+$/.test(apiVersion) || !/^[A-Z][A-Za-z]+$/.test(kind)) {
    console.error(`error: document ${i}: got apiVersion ${apiVersion}, kind ${kind}`);
    process.exit(1);
  }
  const folder = apiVersion.includes("/") ? apiVersion.replace(".k8s.io", "") : `core/${apiVersion}`;
  console.log(`import type { ${kind} as T${i} } from "kubernetes-types/${folder}";`);
  console.log(`export const d${i}: T${i} = ${JSON.stringify(document, null, 1)};`);
});
