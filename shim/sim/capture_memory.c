/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and data of captured streams.
 */
#include "capture_list.h"

bool stream_capturing(CUstream handle, bool per_thread) {
  CUstream stream;
  return capture_any() && stream_find(handle, per_thread, &stream) == CUDA_SUCCESS && stream->capture;
}

static CUresult capturing(CUstream handle, bool per_thread, CUstream *stream) {
  CUresult result = stream_find(handle, per_thread, stream);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return (*stream)->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult capture_alloc(CUstream handle, bool per_thread, const CUmemPoolProps *props, size_t size,
                       CUdeviceptr *address) {
  CUstream stream;
  CUgraphNode node;
  struct node_work work;
  CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = *props, .bytesize = size};
  CUresult result = capturing(handle, per_thread, &stream);
  if (result == CUDA_SUCCESS) {
    result = node_of_alloc(&params, &work);
  }
  if (result == CUDA_SUCCESS) {
    result = capture_add(stream, &work, &node);
  }
  if (result == CUDA_SUCCESS) {
    *address = params.dptr;
  }
  return result;
}

CUresult capture_free(CUstream handle, bool per_thread, CUdeviceptr address) {
  CUstream stream;
  CUgraphNode node;
  struct node_work work;
  CUresult result = capturing(handle, per_thread, &stream);
  if (result == CUDA_SUCCESS) {
    result = node_of_free(address, &work);
  }
  return result == CUDA_SUCCESS ? capture_add(stream, &work, &node) : result;
}

CUresult capture_copy(CUstream handle, bool per_thread, const CUDA_MEMCPY3D *copy) {
  CUstream stream;
  CUgraphNode node;
  CUresult result = capturing(handle, per_thread, &stream);
  struct node_work work = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *copy};
  return result == CUDA_SUCCESS ? capture_add(stream, &work, &node) : result;
}

CUresult capture_fill(CUstream handle, bool per_thread, const CUDA_MEMSET_NODE_PARAMS *fill) {
  CUstream stream;
  CUgraphNode node;
  CUresult result = capturing(handle, per_thread, &stream);
  struct node_work work = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .fill = *fill};
  return result == CUDA_SUCCESS ? capture_add(stream, &work, &node) : result;
}
