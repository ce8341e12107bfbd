// In front of CUDA's header, which cuBLAS's includes: what the stand-in has takes the place of what
// lies beside it, and of types of functions that nobody calls.
#pragma once

#include "cuda_runtime_api.h"

#define __DRIVER_TYPES_H__
#define CU_COMPLEX_H_
struct cuComplex;
struct cuDoubleComplex;

#include_next <cublas_api.h>
