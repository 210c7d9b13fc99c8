/* SPDX-License-Identifier: Apache-2.0
 *
 * The few types and codes of cuda.h that hooks touch, so that the library
 * builds without NVIDIA's headers. shim/tests/test_shim_abi.py compares them with the headers.
 */
#ifndef ALIQUOT_ABI_H
#define ALIQUOT_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned int CUdeviceptr_v1;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphEdgeData_st CUgraphEdgeData;
typedef struct CUgraphNodeParams_st CUgraphNodeParams;
typedef struct CUctxCreateParams_st CUctxCreateParams;
typedef struct CUexecAffinityParam_st CUexecAffinityParam;
typedef int CUlimit;
typedef int CUdriverProcAddressQueryResult;
typedef struct {
  char bytes[16];
} CUuuid;

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
};

enum { CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10 };
enum { CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1 };

/* CUlimit: those that take no device memory. */
enum { CU_LIMIT_MAX_L2_FETCH_GRANULARITY = 5, CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6 };

#endif
