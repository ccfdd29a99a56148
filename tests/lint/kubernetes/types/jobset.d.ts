// SPDX-License-Identifier: Apache-2.0
// The fields of jobset.x-k8s.io/v1alpha2 that deploy/kubernetes uses.
import type { JobTemplateSpec } from "kubernetes-types/batch/v1";
import type { PersistentVolumeClaimSpec } from "kubernetes-types/core/v1";
import type { ObjectMeta } from "kubernetes-types/meta/v1";

export interface JobSet {
  apiVersion: "jobset.x-k8s.io/v1alpha2";
  kind: "JobSet";
  metadata: ObjectMeta;
  spec: JobSetSpec;
}

export interface JobSetSpec {
  network?: { publishNotReadyAddresses?: boolean; enableDNSHostnames?: boolean; subdomain?: string };
  coordinator?: { replicatedJob: string; jobIndex?: number; podIndex?: number };
  successPolicy?: { operator: "All" | "Any"; targetReplicatedJobs?: string[] };
  failurePolicy?: {
    maxRestarts?: number;
    restartStrategy?: "Recreate" | "BlockingRecreate";
    rules?: FailurePolicyRule[];
  };
  volumeClaimPolicies?: {
    templates: { metadata: { name: string }; spec: PersistentVolumeClaimSpec }[];
    retentionPolicy?: { whenDeleted: "Delete" | "Retain" };
  }[];
  replicatedJobs: ReplicatedJob[];
  suspend?: boolean;
  ttlSecondsAfterFinished?: number;
}

export interface FailurePolicyRule {
  name: string;
  action: "FailJobSet" | "RestartJobSet" | "RestartJobSetAndIgnoreMaxRestarts";
  onJobFailureReasons?: (
    | "BackoffLimitExceeded"
    | "DeadlineExceeded"
    | "FailedIndexes"
    | "MaxFailedIndexesExceeded"
    | "PodFailurePolicy"
  )[];
  onJobFailureMessagePatterns?: string[];
  targetReplicatedJobs?: string[];
}

export interface ReplicatedJob {
  name: string;
  replicas?: number;
  dependsOn?: { name: string; status: "Ready" | "Complete" }[];
  template: JobTemplateSpec;
}
