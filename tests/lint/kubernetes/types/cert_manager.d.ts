// SPDX-License-Identifier: Apache-2.0
// The fields of cert-manager.io/v1 that deploy/kubernetes uses.
import type { ObjectMeta } from "kubernetes-types/meta/v1";

export interface Issuer {
  apiVersion: "cert-manager.io/v1";
  kind: "Issuer";
  metadata: ObjectMeta;
  spec: { selfSigned: {} } | { ca: { secretName: string } };
}

export interface Certificate {
  apiVersion: "cert-manager.io/v1";
  kind: "Certificate";
  metadata: ObjectMeta;
  spec: {
    secretName: string;
    commonName?: string;
    isCA?: boolean;
    duration?: string;
    dnsNames?: string[];
    usages?: ("digital signature" | "server auth" | "client auth")[];
    privateKey?: { algorithm: "ECDSA" | "RSA" | "Ed25519"; size?: number; rotationPolicy?: "Always" | "Never" };
    issuerRef: { kind: "Issuer" | "ClusterIssuer"; name: string };
  };
}
