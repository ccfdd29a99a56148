// SPDX-License-Identifier: Apache-2.0
// The fields of monitoring.coreos.com/v1 that deploy/kubernetes uses.
import type { LabelSelector, ObjectMeta } from "kubernetes-types/meta/v1";

interface SecretKey {
  name: string;
  key: string;
}

export interface PodMonitor {
  apiVersion: "monitoring.coreos.com/v1";
  kind: "PodMonitor";
  metadata: ObjectMeta;
  spec: {
    selector: LabelSelector;
    podTargetLabels?: string[];
    podMetricsEndpoints: {
      port?: string;
      path?: string;
      scheme?: "http" | "https";
      interval?: string;
      scrapeTimeout?: string;
      tlsConfig?: { serverName?: string; ca?: { secret: SecretKey }; insecureSkipVerify?: boolean };
      authorization?: { type?: "Bearer"; credentials: SecretKey };
    }[];
  };
}

export interface PrometheusRule {
  apiVersion: "monitoring.coreos.com/v1";
  kind: "PrometheusRule";
  metadata: ObjectMeta;
  spec: {
    groups: {
      name: string;
      interval?: string;
      rules: {
        alert?: string;
        record?: string;
        expr: string;
        for?: string;
        labels?: { [name: string]: string };
        annotations?: { [name: string]: string };
      }[];
    }[];
  };
}
