// SPDX-License-Identifier: Apache-2.0
// Turns rendered Kubernetes YAML on standard input into TypeScript constants of the types for their apiVersion and
// kind, on standard output: tsc then refuses fields that the types do not have. Core objects have the types of
// kubernetes-types, those of JobSet, Trainer, the Prometheus operator and cert-manager the ones in types/.
//
// Usage: node schema.js < rendered.yaml > rendered.ts

const fs = require("fs");
const yaml = require("js-yaml");

const OWN = {
  "jobset.x-k8s.io/v1alpha2": "jobset",
  "trainer.kubeflow.org/v1alpha1": "trainer",
  "monitoring.coreos.com/v1": "monitoring",
  "cert-manager.io/v1": "cert_manager",
};

const documents = yaml.loadAll(fs.readFileSync(0, "utf8")).filter(Boolean);
if (documents.length === 0) {
  console.error("error: nothing was rendered");
  process.exit(1);
}
documents.forEach((document, i) => {
  const { apiVersion, kind } = document;
  const core = /^([a-z]+(\.k8s\.io)?\/)?v[0-9a-z]+$/.test(apiVersion);
  if (!(core || apiVersion in OWN) || !/^[A-Z][A-Za-z]+$/.test(kind)) {
    console.error(`error: document ${i}: got apiVersion ${apiVersion}, kind ${kind}, want one with types`);
    process.exit(1);
  }
  const folder = apiVersion.includes("/") ? apiVersion.replace(".k8s.io", "") : `core/${apiVersion}`;
  const module = apiVersion in OWN ? `./types/${OWN[apiVersion]}` : `kubernetes-types/${folder}`;
  console.log(`import type { ${kind} as T${i} } from "${module}";`);
  console.log(`export const d${i}: T${i} = ${JSON.stringify(document, null, 1)};`);
});
