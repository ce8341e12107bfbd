// In the place of CUDA's header, for declarations of cuBLAS that nobody calls.
#pragma once

struct __nv_bfloat16;
