function y = onnx_parts(z, rank)
% The real and the imaginary part of complex numbers of RANK dimensions, as a new dimension 1.
s = onnx_size(z, rank);
y = zeros([2, numel(z)], class(z));
y(1, :) = real(z(:));
y(2, :) = imag(z(:));
y = onnx_sized(y, [2, s]);
end
