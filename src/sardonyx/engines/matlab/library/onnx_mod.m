function y = onnx_mod(a, b, fmod)
% The remainder with the sign of the divisor, or of the dividend if FMOD.
a = a + zeros(size(b), class(b));
b = b + zeros(size(a), class(a));
y = rem(a, b);
y(isnan(a) | isinf(a) | b == 0) = NaN;
y(isinf(b) & isfinite(a)) = a(isinf(b) & isfinite(a));
if ~fmod
    other = y ~= 0 & (y < 0) ~= (b < 0);
    y(other) = y(other) + b(other);
end
end
