// SPDX-License-Identifier: Apache-2.0
// The fields of trainer.kubeflow.org/v1alpha1 that deploy/kubernetes uses.
import type { EnvVar, ResourceRequirements } from "kubernetes-types/core/v1";
import type { ObjectMeta } from "kubernetes-types/meta/v1";
import type { JobSetSpec } from "./jobset";

export interface ClusterTrainingRuntime {
  apiVersion: "trainer.kubeflow.org/v1alpha1";
  kind: "ClusterTrainingRuntime";
  metadata: ObjectMeta;
  spec: { mlPolicy?: { numNodes?: number }; template: { metadata?: ObjectMeta; spec: JobSetSpec } };
}

export interface TrainJob {
  apiVersion: "trainer.kubeflow.org/v1alpha1";
  kind: "TrainJob";
  metadata: ObjectMeta;
  spec: {
    runtimeRef: { apiGroup?: string; kind?: "ClusterTrainingRuntime" | "TrainingRuntime"; name: string };
    trainer?: {
      image?: string;
      command?: string[];
      args?: string[];
      env?: EnvVar[];
      numNodes?: number;
      resourcesPerNode?: ResourceRequirements;
    };
    suspend?: boolean;
  };
}
