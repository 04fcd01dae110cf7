#pragma OPENCL FP_CONTRACT OFF
static inline float hal_bf16_value(ushort h) {
    uint b = (uint)h << 16;
    return as_float(b);
}

__kernel void shares_kernel(__global uchar *x_base, ulong x_offset, __global uchar *y_base, ulong y_offset, long n_value)
{
    __global ushort *x_data = (__global ushort *)(x_base + x_offset);
    __global float *y_data = (__global float *)(y_base + y_offset);
    const long t1 = n_value;
    float v2[16];
    const long t4 = (long)get_global_id(0);
    const long t5 = (long)((ulong)t4 * (ulong)t1);
    if (t1 >= 16) {
        for (int i3 = 0; i3 < 16; ++i3) {
            v2[i3] = hal_bf16_value(x_data[t5 + i3]);
        }
    }
    else {
        for (int i6 = 0; i6 < 16; ++i6) {
            v2[i6] = i6 < t1 ? hal_bf16_value(x_data[t5 + i6]) : 0;
        }
    }
    float v8[1];
    {
        v8[0] = (-0x0.0p+0f);
    }
    for (int i9 = 0; i9 < 16; ++i9) {
        const float t10 = v2[i9];
        const float t11 = (float)t10;
        v8[0] = (v8[0] + t11);
    }
    const float t12 = v8[0];
    const float t17 = v8[0];
    if (t1 >= 16) {
        for (int i7 = 0; i7 < 16; ++i7) {
            const float t13 = v2[i7];
            const float t14 = (float)t13;
            const float t15 = (t14 / t12);
            y_data[t5 + i7] = t15;
        }
    }
    else {
        for (int i16 = 0; i16 < 16; ++i16) {
            const float t18 = v2[i16];
            const float t19 = (float)t18;
            const float t20 = (t19 / t17);
            if (i16 < t1) y_data[t5 + i16] = t20;
        }
    }
}
