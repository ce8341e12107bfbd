// What of NVTX is called, in the place of NVIDIA's header.
#pragma once

int nvtxRangePushA(const char* words);
int nvtxRangePop();
